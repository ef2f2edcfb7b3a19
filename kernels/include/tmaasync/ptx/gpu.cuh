#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "ld", "atom" and "red" of one word of global memory, with acquire or release at gpu
// scope: between threads of one GPU. __threadfence() next to an access without them is fence.sc,
// which takes longer.
namespace tmaasync::ptx {

__device__ __forceinline__ u32 ld_acquire_gpu(const u32* global) {
    u32 word;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(global) : "memory");
    return word;
}

// The word becomes `word` if it is `compare`. Returns what it was.
__device__ __forceinline__ u32 atom_acquire_gpu_cas(u32* global, u32 compare, u32 word) {
    u32 before;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(before)
                 : "l"(global), "r"(compare), "r"(word)
                 : "memory");
    return before;
}

__device__ __forceinline__ void red_release_gpu_add(u32* global, u32 value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}

}  // namespace tmaasync::ptx
