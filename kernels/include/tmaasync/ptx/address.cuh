#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

// Address of an object in this CTA's shared memory, within the shared::cta window.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// The address that the same shared object has in another CTA of the cluster (shared::cluster).
__device__ __forceinline__ u32 mapa(u32 shared, u32 cta_rank) {
    u32 remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(cta_rank));
    return remote;
}

// The same between generic addresses.
__device__ __forceinline__ u64 mapa(u64 address, u32 cta_rank) {
    u64 remote;
    asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(address), "r"(cta_rank));
    return remote;
}

}  // namespace tmaasync::ptx
