#pragma once

// Split-K reduced through the distributed shared memory of a cluster, deterministically and without
// a workspace: each of SPLIT_K CTAs multiplies its own range of K for all columns of the tile. Then
// the first kOutputSlices of them reduce and store a slice of the columns each. The grid has
// SPLIT_K CTAs for every tile: the partial sums lie in the pipeline's stages, which no other tile
// is loaded into.
#include "mainloop.cuh"

namespace tmaasync {

static_assert(Cluster::kCtas <= 8, "a cluster has at most eight CTAs");
static_assert(SPLIT_K == 1 || !PING_PONG, "consumers share a tile whose K is split");

// This CTA's number among those that split K.
__device__ int split_rank() {
    return Cluster::split_rank();
}

// Four of a thread's accumulators.
struct alignas(16) Quad {
    Accumulator values[4];
};

constexpr int kSliceQuads = kOutputSliceColumns / 8;

// The partial sums of a slice that one CTA sends to another. Every thread reads what the thread of
// its number wrote, so that a warp's accesses are contiguous.
struct PartialSlice {
    Quad quads[kRowBlocks][kSliceQuads][CONSUMERS * kWarpgroupThreads];
};
static_assert(
    (SPLIT_K - 1) * sizeof(PartialSlice) <= sizeof(OperandRing<NoSide>::stages),
    "the stages hold the partial sums of all peers"
);

// The partial sums from a peer. A CTA numbers its peers in the order of their ranks.
__device__ PartialSlice& received_slice(SharedMemory& shared, int peer) {
    return reinterpret_cast<PartialSlice*>(shared.ring.stages)[peer];
}

// Where this CTA's partial sums go, in the shared memory of the owner of a slice.
__device__ PartialSlice& remote_slice(SharedMemory& shared, int owner) {
    const int rank = split_rank();
    auto& slice = received_slice(shared, rank < owner ? rank : rank - 1);
    return *map_shared_rank(&slice, owner * CLUSTER + Cluster::Sharing::rank());
}

__device__ int consumer_thread() {
    return static_cast<int>(threadIdx.x) - kWarpgroupThreads;
}

__device__ void write_slice(PartialSlice& slice, const Accumulators& accumulators, int first) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
        for (int i = 0; i < kSliceQuads; ++i) {
            const Accumulator* s = accumulators[row_block] + first + 4 * i;
            slice.quads[row_block][i][consumer_thread()] = {s[0], s[1], s[2], s[3]};
        }
    }
}

__device__ void add_slice(OutputSlice& sum, const PartialSlice& slice) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
        for (int i = 0; i < kSliceQuads; ++i) {
            const Quad quad = slice.quads[row_block][i][consumer_thread()];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                sum[row_block][4 * i + j] += quad.values[j];
            }
        }
    }
}

__device__ void copy_slice(OutputSlice& slice, const Accumulators& accumulators, int first) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
        for (int i = 0; i < kOutputSliceColumns / 2; ++i) {
            slice[row_block][i] = accumulators[row_block][first + i];
        }
    }
}

// Sends every slice to its owner. The CTAs start with different owners, because the writes of all
// to one would queue up.
__device__ void send_slices(SharedMemory& shared, const Accumulators& accumulators) {
#pragma unroll 1
    for (int step = 1; step < SPLIT_K; ++step) {
        const int owner = (split_rank() + step) % SPLIT_K;
        if (owner >= kOutputSlices) continue;
        auto& remote = remote_slice(shared, owner);
        // Registers have no run-time index.
#pragma unroll
        for (int slice = 0; slice < kOutputSlices; ++slice) {
            if (slice == owner)
                write_slice(remote, accumulators, slice * (kOutputSliceColumns / 2));
        }
    }
}

__device__ void keep_own_slice(OutputSlice& slice, const Accumulators& accumulators) {
#pragma unroll
    for (int owner = 0; owner < kOutputSlices; ++owner) {
        if (owner == split_rank()) {
            copy_slice(slice, accumulators, owner * (kOutputSliceColumns / 2));
        }
    }
}

// Adds the peers' partial sums to this CTA's own, in the order of their ranks: deterministic.
__device__ void reduce_slice(SharedMemory& shared, OutputSlice& slice) {
    for (int peer = 0; peer < SPLIT_K - 1; ++peer) {
        add_slice(slice, received_slice(shared, peer));
    }
}

// Leaves the accumulators over all of K in `slice`, if this CTA stores one.
template <typename Operands>
__device__ void multiply_slice(
    SharedMemory& shared, OperandConsumer& stages, OutputSlice& slice, int consumer, int k_blocks
) {
    Accumulators accumulators = {};
    if (k_blocks > 0) {
        TileLoop<Operands>::multiply(stages, accumulators, k_blocks, consumer_row(consumer));
    }
    // Every CTA has read its stages for the last time: partial sums may overwrite them.
    cluster_sync();
    send_slices(shared, accumulators);
    keep_own_slice(slice, accumulators);
    // All have arrived, and no CTA accesses another one's memory any more.
    cluster_sync();
    if (split_rank() < kOutputSlices) reduce_slice(shared, slice);
}

template <typename Operands, typename... Visitors>
__device__ void multiply_split_tile(
    SharedMemory& shared,
    OperandConsumer& stages,
    const CTile& c,
    const TileScheduler& scheduler,
    int consumer,
    const Visitors&... visitors
) {
    const int rank = split_rank();
    OutputSlice slice;
    multiply_slice<Operands>(
        shared, stages, slice, consumer, KRange::of<Cluster>(scheduler.k_blocks).count
    );
    if (rank >= kOutputSlices) return;
    auto tile = scheduler.tile();
    tile.n += rank * kOutputSliceColumns;
    TileEpilogue epilogue(shared.epilogue[consumer], consumer, consumer_row(consumer));
    epilogue.store(slice, c, tile, visitors...);
    epilogue.drain();
}

// The consumers of a kernel that supports split-K.
template <typename Operands, typename... Visitors>
__device__ void multiply_tiles_or_split_k(
    SharedMemory& shared,
    OperandConsumer& stages,
    const CTile& c,
    const TileScheduler& scheduler,
    int consumer,
    const Visitors&... visitors
) {
    if constexpr (SPLIT_K == 1) {
        multiply_tiles<Operands>(shared, stages, c, scheduler, consumer, visitors...);
    } else {
        multiply_split_tile<Operands>(shared, stages, c, scheduler, consumer, visitors...);
    }
}

}  // namespace tmaasync
