#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "ld", "st" and "red" of one word of global memory, with acquire or release at system
// scope: between threads of all GPUs and of the host.
namespace tmaasync::ptx {

__device__ __forceinline__ u32 ld_acquire_sys(const u32* global) {
    u32 word;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(global) : "memory");
    return word;
}

__device__ __forceinline__ void st_release_sys(u32* global, u32 word) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(global), "r"(word) : "memory");
}

__device__ __forceinline__ void red_release_sys_add(u32* global, u32 value) {
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}

}  // namespace tmaasync::ptx
