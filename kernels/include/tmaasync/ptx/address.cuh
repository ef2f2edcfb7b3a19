#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

// Address of an object in this CTA's shared memory, within the shared::cta window.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// PTX ISA: "mul.wide". Multiply two 32-bit numbers to one of 64 bits.
__device__ __forceinline__ u64 mul_wide(u32 a, u32 b) {
    u64 result;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(result) : "r"(a), "r"(b));
    return result;
}

// The address that the same shared object has in another CTA of the cluster (shared::cluster).
__device__ __forceinline__ u32 mapa(u32 shared, u32 cta_rank) {
    u32 remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(cta_rank));
    return remote;
}

// The generic address that the same shared object has there.
__device__ __forceinline__ u64 mapa(u64 address, u32 cta_rank) {
    u64 remote;
    asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(address), "r"(cta_rank));
    return remote;
}

// The shared address that the even CTA of the pair has for the same object. A pair is the CTAs of
// ranks 2 n and 2 n + 1; a shared address carries the rank of its CTA from bit 24 up.
__device__ __forceinline__ u32 even_cta_of_pair(u32 shared) {
    return shared & 0xfeffffff;
}

// The rank of the CTA to which a shared::cluster address belongs.
__device__ __forceinline__ u32 getctarank(u32 remote) {
    u32 rank;
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank) : "r"(remote) : "memory");
    return rank;
}

}  // namespace tmaasync::ptx
