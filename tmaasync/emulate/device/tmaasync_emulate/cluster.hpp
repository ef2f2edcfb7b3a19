// The cluster of a block: the functions of CUDA's <cooperative_groups.h>, and the PTX ISA's special
// registers for clusters.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>
#include <tmaasync_emulate/memory.hpp>

namespace tmaasync_emulate {

[[noreturn]] TMAASYNC_EMULATE_INLINE void fail_beyond_cluster(uint32_t rank) {
    const Mention facts[] = {
        {rank, MentionKind::kNumeral}, {current_thread().ctas, MentionKind::kNumeral}
    };
    fail(FaultKind::kMapaRank, facts, 2);
}

// mapa: the same offset in another CTA's shared memory.
TMAASYNC_EMULATE_INLINE void* in_shared_of(const void* pointer, uint32_t rank) {
    if (rank >= current_thread().ctas) fail_beyond_cluster(rank);
    const std::size_t address = __cvta_generic_to_shared(pointer);
    if (is_no_shared_address(address)) return reinterpret_cast<void*>(address);
    return shared_pointer((address & kOffsetMask) | std::size_t{rank} << kRankShift);
}

TMAASYNC_EMULATE_INLINE uint32_t rank_of_shared(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer) >> kRankShift);
}

}  // namespace tmaasync_emulate

inline void* __cluster_map_shared_rank(const void* pointer, unsigned rank) {
    return tmaasync_emulate::in_shared_of(pointer, rank);
}
inline unsigned __cluster_query_shared_rank(const void* pointer) {
    return tmaasync_emulate::rank_of_shared(pointer);
}
inline void __cluster_barrier_arrive() {
    tmaasync_emulate::cluster_barrier_arrive(true);
}
inline void __cluster_barrier_arrive_relaxed() {
    tmaasync_emulate::cluster_barrier_arrive(false);
}
inline void __cluster_barrier_wait() {
    tmaasync_emulate::cluster_barrier_wait();
}

// A cluster of one block counts as none.
inline unsigned __clusterDimIsSpecified() {
    return tmaasync_emulate::current_thread().ctas > 1;
}
inline unsigned __clusterRelativeBlockRank() {
    return tmaasync_emulate::current_thread().rank;
}
inline unsigned __clusterSizeInBlocks() {
    return tmaasync_emulate::current_thread().ctas;
}
inline dim3 __clusterDim() {
    return tmaasync_emulate::current_thread().cluster_dim;
}
inline dim3 __clusterRelativeBlockIdx() {
    const tmaasync_emulate::Thread& thread = tmaasync_emulate::current_thread();
    const uint3 size = thread.cluster_dim;
    return {thread.block.x % size.x, thread.block.y % size.y, thread.block.z % size.z};
}
inline dim3 __clusterIdx() {
    const tmaasync_emulate::Thread& thread = tmaasync_emulate::current_thread();
    const uint3 size = thread.cluster_dim;
    return {thread.block.x / size.x, thread.block.y / size.y, thread.block.z / size.z};
}
inline dim3 __clusterGridDimInClusters() {
    const tmaasync_emulate::Thread& thread = tmaasync_emulate::current_thread();
    const uint3 size = thread.cluster_dim;
    return {thread.grid_dim.x / size.x, thread.grid_dim.y / size.y, thread.grid_dim.z / size.z};
}
