#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "ld" of shared memory; volatile: read anew every time.
namespace tmaasync::ptx {

__device__ __forceinline__ u64 ld_volatile_shared(u32 shared) {
    u64 value;
    asm volatile("ld.volatile.shared::cta.b64 %0, [%1];" : "=l"(value) : "r"(shared) : "memory");
    return value;
}

// Two words, at a multiple of 8 bytes.
__device__ __forceinline__ void ld_volatile_shared_v2(u32 shared, u32& first, u32& second) {
    asm volatile("ld.volatile.shared::cta.v2.b32 {%0, %1}, [%2];"
                 : "=r"(first), "=r"(second)
                 : "r"(shared)
                 : "memory");
}

// 16 bytes in one load, at a multiple of 16.
__device__ __forceinline__ void ld_shared_v2(u32 shared, u64& low, u64& high) {
    asm volatile("ld.shared::cta.v2.b64 {%0, %1}, [%2];"
                 : "=l"(low), "=l"(high)
                 : "r"(shared)
                 : "memory");
}

}  // namespace tmaasync::ptx
