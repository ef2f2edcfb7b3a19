#pragma once

// K split over SPLIT_K CTAs of a cluster: each multiplies its own blocks of K, all columns of the
// tile; then each of the first kShares adds up a share of the columns and stores it. The grid has
// SPLIT_K CTAs for every tile: what is sent lies in the ring, which no tile to come is loaded into.
#include "mainloop.cuh"

namespace tmaasync {

static_assert(kClusterCtas <= 8, "a cluster has at most eight CTAs");
static_assert(SPLIT_K == 1 || !PING_PONG, "all groups share a tile that is split");

// Which part of K this CTA multiplies.
__device__ int rank_in_split() {
    return block_rank_in_cluster() / CLUSTER;
}

// The blocks of K that this CTA multiplies: all, or a share of them, which may be none.
struct KBlocks {
    int first;
    int count;

    __device__ explicit KBlocks(int all) : first(0), count(all) {
        if constexpr (SPLIT_K > 1) {
            const int rank = rank_in_split();
            first = all * rank / SPLIT_K;
            count = all * (rank + 1) / SPLIT_K - first;
        }
    }
};

// Four of a thread's sums.
struct alignas(16) Quad {
    Sum values[4];
};

constexpr int kShareQuads = kShareColumns / 8;

// What one CTA sends another. Every thread reads what the thread of its number wrote: so a warp's
// accesses are of one piece.
struct Partials {
    Quad quads[kParts][kShareQuads][CONSUMERS * kGroupThreads];
};
static_assert(
    (SPLIT_K - 1) * sizeof(Partials) <= sizeof(SharedMemory::stages), "the ring holds what is sent"
);

// What the peer of this number sent: all parts but this CTA's own are numbered, in their order.
__device__ Partials& partials_from(SharedMemory& shared, int peer) {
    return reinterpret_cast<Partials*>(shared.stages)[peer];
}

// The place for what this CTA sends to the one that stores a share.
__device__ Partials& partials_at(SharedMemory& shared, int owner) {
    const int rank = rank_in_split();
    auto& partials = partials_from(shared, rank < owner ? rank : rank - 1);
    return *map_shared_rank(&partials, owner * CLUSTER + rank_among_sharers());
}

__device__ int consumer_thread() {
    return static_cast<int>(threadIdx.x) - kGroupThreads;
}

__device__ void write_partials(Partials& partials, const Sums& sums, int first) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kShareQuads; ++i) {
            const Sum* s = sums[part] + first + 4 * i;
            partials.quads[part][i][consumer_thread()] = {s[0], s[1], s[2], s[3]};
        }
    }
}

__device__ void add_partials(Share& share, const Partials& partials) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kShareQuads; ++i) {
            const Quad more = partials.quads[part][i][consumer_thread()];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                share[part][4 * i + j] += more.values[j];
            }
        }
    }
}

__device__ void copy_share(Share& share, const Sums& sums, int first) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kShareColumns / 2; ++i) {
            share[part][i] = sums[part][first + i];
        }
    }
}

// Each share goes to the CTA that stores it. The CTAs begin with different ones: what comes in
// from all at once queues up.
__device__ void send_shares(SharedMemory& shared, const Sums& sums) {
#pragma unroll 1
    for (int step = 1; step < SPLIT_K; ++step) {
        const int owner = (rank_in_split() + step) % SPLIT_K;
        if (owner >= kShares) continue;
        auto& partials = partials_at(shared, owner);
        // Registers have no run-time index.
#pragma unroll
        for (int share = 0; share < kShares; ++share) {
            if (share == owner) write_partials(partials, sums, share * (kShareColumns / 2));
        }
    }
}

__device__ void keep_share(Share& share, const Sums& sums) {
#pragma unroll
    for (int owner = 0; owner < kShares; ++owner) {
        if (owner == rank_in_split()) copy_share(share, sums, owner * (kShareColumns / 2));
    }
}

// In the order of the parts of K behind the CTA's own, the same in every run.
__device__ void add_peers(SharedMemory& shared, Share& share) {
    for (int peer = 0; peer < SPLIT_K - 1; ++peer) {
        add_partials(share, partials_from(shared, peer));
    }
}

// The whole tile's sums of the columns that this CTA stores, if it stores any.
template <typename Operands>
__device__ void multiply_share(
    SharedMemory& shared, Ring& place, Share& share, int consumer, int k_blocks
) {
    Sums sums = {};
    if (k_blocks > 0) multiply_tile<Operands>(shared, place, sums, consumer, k_blocks, [] {});
    // Every CTA has read its ring for the last time: sums may lie there.
    cluster_sync();
    send_shares(shared, sums);
    keep_share(share, sums);
    // They have arrived, and no CTA touches another one's memory any more.
    cluster_sync();
    if (rank_in_split() < kShares) add_peers(shared, share);
}

template <typename Operands, typename Finish>
__device__ void multiply_split_tile(
    SharedMemory& shared, const CTile& c, const TileWalk& walk, int consumer, const Finish& finish
) {
    auto place = Ring::for_consumer();
    u32 chunks = 0;
    const int rank = rank_in_split();
    Share share;
    multiply_share<Operands>(shared, place, share, consumer, KBlocks(walk.k_blocks).count);
    if (rank >= kShares) return;
    auto start = walk.start();
    start.n += rank * kShareColumns;
    finish.tile(share, place, start);
    store_sums(shared, chunks, share, finish, c, consumer, start);
    end_stores();
}

// The consumers of a kernel that may be built with K split.
template <typename Operands, typename Finish>
__device__ void multiply_whole_or_split(
    SharedMemory& shared, const CTile& c, const TileWalk& walk, int consumer, const Finish& finish
) {
    if constexpr (SPLIT_K == 1) {
        multiply_tiles<Operands>(shared, c, walk, consumer, finish);
    } else {
        multiply_split_tile<Operands>(shared, c, walk, consumer, finish);
    }
}

}  // namespace tmaasync
