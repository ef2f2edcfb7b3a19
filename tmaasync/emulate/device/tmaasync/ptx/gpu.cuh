#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 ld_acquire_gpu(const u32* global) {
    const u32 word = *const_cast<const volatile u32*>(global);
    __threadfence();
    return word;
}

__device__ __forceinline__ u32 atom_inc_up_to(u32* global, u32 last, u32 limit) {
    const auto change = [=](u32 old) { return old >= last ? 0 : old + 1; };
    return tmaasync_emulate::count_atomically(global, change, last, {1, 1, limit});
}

template <u64 kDivisor>
__device__ __forceinline__ u64 atom_add_quotient(u64* global, u64 value) {
    const auto change = [=](u64 old) { return old + value; };
    return tmaasync_emulate::count_atomically(global, change, ~u64{0}, {value, kDivisor});
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
