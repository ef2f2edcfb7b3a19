#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 ld_acquire_gpu(const u32* global) {
    const u32 word = *const_cast<const volatile u32*>(global);
    __threadfence();
    return word;
}

__device__ __forceinline__ u32 atom_acquire_gpu_cas(u32* global, u32 compare, u32 word) {
    const u32 before = atomicCAS(global, compare, word);
    __threadfence();
    return before;
}

__device__ __forceinline__ void red_release_gpu_add(u32* global, u32 value) {
    __threadfence();
    atomicAdd(global, value);
}

}  // namespace tmaasync::ptx
