#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/fragment.cuh>
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/partial_accumulators.cuh>
#include <tmaasync/structured/stream_k_scheduler.cuh>
#include <tmaasync/warp.cuh>

namespace tmaasync {

// Stream-K reduced through a workspace in global memory, deterministically (the fix-up of Osama et
// al. 2023): the clusters that share a tile of a StreamKScheduler write partial accumulators, and
// the one that finishes the tile adds them up, in the order of K. One object for each of kConsumers
// warpgroups, with MainLoop::Accumulators. The workspace has
//
//   partials    the accumulators of one tile for every CTA of the grid
//   flags       kConsumers for every CTA: 0 before the first launch, and 0 again after each
//
// Launches that may overlap need a workspace each.
template <typename Accumulators, int kConsumers, typename Cluster = ClusterShape<>>
class StreamKReduction {
public:
    using Register = typename AccumulatorShape<Accumulators>::Register;

    // It uses named barrier 1 + consumer, as this consumer's Epilogue does: the two never wait at
    // once.
    __device__ __forceinline__ StreamKReduction(Register* partials, u32* flags, int consumer)
        : partials_(reinterpret_cast<Partial*>(partials)), flags_(flags), consumer_(consumer) {}

    // True where this cluster finishes the tile: its accumulators then cover all of K.
    // Called by all four warps, for every tile of the schedule.
    template <typename Tile>
    [[nodiscard]] __device__ __forceinline__ bool reduce(
        Accumulators& accumulators, const StreamKTile<Tile, Cluster>& tile
    ) const {
        if (!tile.finishes) {
            write_partial(accumulators);
            return false;
        }
        for (int peer = tile.peers; peer > 0; --peer) {
            add_partial(slot_of(Cluster::index() - peer), accumulators);
        }
        return true;
    }

private:
    using Partial = PartialAccumulators<Accumulators, 128>;

    // A cluster leaves one tile at most to another one: every CTA has one slot for each consumer.
    __device__ __forceinline__ int slot_of(int cluster) const {
        int cta = cluster;
        if constexpr (Cluster::kCtas > 1) cta = cluster * Cluster::kCtas + block_rank_in_cluster();
        return cta * kConsumers + consumer_;
    }

    __device__ __forceinline__ NamedBarrier<128> barrier() const { return {1u + consumer_}; }

    __device__ __forceinline__ void write_partial(const Accumulators& accumulators) const {
        const int slot = slot_of(Cluster::index());
        partials_[slot].write(thread_in_warpgroup(), accumulators);
        barrier().sync();
        if (thread_in_warpgroup() == 0) {
            __threadfence();
            const u32 before = atomicExch(flags_ + slot, 1u);
            check(before == 0, "flags[cta][consumer]", before, "before a launch it must be", 0);
        }
    }

    // Wait until a slot is written, and take it.
    __device__ __forceinline__ void add_partial(int slot, Accumulators& accumulators) const {
        if (thread_in_warpgroup() == 0) {
            while (atomicCAS(flags_ + slot, 1u, 0u) == 0) continue;
            __threadfence();
        }
        barrier().sync();
        partials_[slot].add_to(thread_in_warpgroup(), accumulators);
    }

    Partial* partials_;
    u32* flags_;
    int consumer_;
};

}  // namespace tmaasync
