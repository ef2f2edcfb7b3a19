// Reduce-scatter and all-reduce: every rank loads the rows of its shard from the arrays of all
// ranks by TMA, adds them in the order of the ranks, and stores the sum: into its own output, or
// into the outputs of all ranks, which then have the same bits. A producer thread loads tiles
// through a ring; the consumer warps add. When the kernel ends, all rows have arrived, and no rank
// reads the own array any more. All CTAs are resident at once, since they wait for other ranks, and
// all ranks have as many.
//
//   Tile            a TMATensorTile of rows and columns, not swizzled
//   STAGES          pipeline stages
//   CONSUMER_WARPS  warps that add
//
// source_i has the array of rank i, and target_i one of `targets` outputs, at the rows of this
// rank's shard. Those after the last are not used.
#include <tmaasync/shards.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/tmaasync.cuh>

#include "rank_tiles.cuh"
#include "tile_sum.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;

struct Stage {
    static constexpr int kBytes = Tile::kBytes;
    Tile::Shared tile;
};
struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<CONSUMER_WARPS>> ring;
    Tile::Shared staged[2];
    u32 epoch;
};
extern "C" __device__ const int reduce_ranks_shared_bytes = sizeof(SharedMemory);

// Call work(at) for each tile of the own shard that is this CTA's.
template <typename Work>
__device__ __forceinline__ void for_each_tile(const Round& round, const Work& work) {
    const int across = count_tiles(round.shards.columns, Tile::side(1));
    const int count = count_tiles(round.shards.rows(round.signals.rank), Tile::side(0)) * across;
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        work(Coordinates<2>{i % across * Tile::side(1), i / across * Tile::side(0)});
    }
}

// load(rank, stage, at) loads from the array of a rank.
template <typename Load>
__device__ __forceinline__ void produce(
    SharedMemory& shared, const Round& round, const Load& load
) {
    const u32 ranks = round.signals.ranks;
    // A rank that has entered the round has its array complete, and its output free.
    for (u32 peer = 0; peer < ranks; ++peer) {
        if (peer != round.signals.rank) round.signals.wait(peer, round.epoch);
    }
    auto producer = shared.ring.producer();
    for_each_tile(round, [&](const auto& at) {
        u32 rank = 0;
        for (auto stage : producer.produce(ranks)) load(rank++, stage, at);
    });
}

// store(sum, at) stores the sum of a tile.
template <typename Store>
__device__ __forceinline__ void consume(
    SharedMemory& shared, const Round& round, const Store& store
) {
    const NamedBarrier<kConsumers> consumers{1};
    auto consumer = shared.ring.consumer();
    int buffer = 0;
    for_each_tile(round, [&](const auto& at) {
        TileSum sum;
        sum.clear();
        for (auto stage : consumer.consume(round.signals.ranks)) sum.add(stage->tile);
        if (threadIdx.x == 0) wait_group_read<1>();  // the tile before the last has left its buffer
        consumers.sync();
        auto& stored = shared.staged[buffer ^= 1];
        sum.write(stored);
        fence_async_view_proxy();
        consumers.sync();
        if (threadIdx.x == 0) {
            store(stored, at);
            commit_group();
        }
    });
    if (threadIdx.x != 0) return;
    wait_group<0>();
    for (u32 peer = 0; peer < round.signals.ranks; ++peer) {
        if (peer == round.signals.rank) continue;
        const u32 signal = round.signal_of(round.signals.rank, blockIdx.x);
        round.signals.post(peer, signal, round.epoch);
    }
    for (u32 peer = 0; peer < round.signals.ranks; ++peer) {
        if (peer == round.signals.rank) continue;
        round.signals.wait(round.signal_of(peer, blockIdx.x), round.epoch);
    }
}

extern "C" __global__ void __launch_bounds__(kConsumers + 32) reduce_ranks(
    const __grid_constant__ Tile source_0,
    const __grid_constant__ Tile source_1,
    const __grid_constant__ Tile source_2,
    const __grid_constant__ Tile source_3,
    const __grid_constant__ Tile source_4,
    const __grid_constant__ Tile source_5,
    const __grid_constant__ Tile source_6,
    const __grid_constant__ Tile source_7,
    const __grid_constant__ Tile target_0,
    const __grid_constant__ Tile target_1,
    const __grid_constant__ Tile target_2,
    const __grid_constant__ Tile target_3,
    const __grid_constant__ Tile target_4,
    const __grid_constant__ Tile target_5,
    const __grid_constant__ Tile target_6,
    const __grid_constant__ Tile target_7,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    u32 targets
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.ring.init();
        shared.epoch = enter_round(rounds, blockIdx.x, gridDim.x);
        if (blockIdx.x == 0) Round{signals, shards, shared.epoch}.enter();
    }
    __syncthreads();
    const Round round{signals, shards, shared.epoch};
    if (warp_index() < CONSUMER_WARPS) {
        consume(shared, round, [&](const auto& sum, const auto& at) {
            const auto store = [&](const Tile& target) { target.async_store(sum, at); };
            for_each_rank(
                targets, store, target_0, target_1, target_2, target_3, target_4, target_5,
                target_6, target_7
            );
        });
    } else if (elect()) {
        produce(shared, round, [&](u32 rank, const auto& stage, const auto& at) {
            const auto load = [&](const Tile& source) {
                source.async_copy(stage->tile, stage.full(), at);
            };
            with_tile_of(
                rank, load, source_0, source_1, source_2, source_3, source_4, source_5, source_6,
                source_7
            );
        });
    }
}
