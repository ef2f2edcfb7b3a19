#pragma once

// The consumers of a GEMM multiply and store their tiles. The epilogue applies the visitors.
#include "config.cuh"

namespace tmaasync::kernels::gemm {

// Loop is a MainLoop, Schedule a scheduler. store(accumulators, tile) is the epilogue.
template <typename Loop, typename Schedule, typename Store>
__device__ void multiply_and_store(
    OperandConsumer& stages,
    const Schedule& schedule,
    int k_blocks,
    int consumer,
    const Store& store
) {
    if constexpr (PING_PONG) {
        multiply_tiles_pingpong<Loop>(stages, schedule, k_blocks, consumer, store);
    } else {
        const int row = consumer_row(consumer);
        multiply_tiles_cooperative<Loop>(stages, schedule, k_blocks, row, store);
    }
}

// `last` is as in Epilogue.
template <typename Loop, typename Schedule, typename... Visitors>
__device__ void multiply_tiles(
    SharedMemory& shared,
    OperandConsumer& stages,
    const CTile& c,
    const Schedule& schedule,
    int k_blocks,
    int consumer,
    int last,
    const Visitors&... visitors
) {
    TileEpilogue epilogue(shared.epilogue[consumer], consumer, consumer_row(consumer), last);
    multiply_and_store<Loop>(
        stages, schedule, k_blocks, consumer, [&](Accumulators& accumulators, const auto& tile) {
            epilogue.store(accumulators, c, tile, visitors...);
        }
    );
    epilogue.drain();
}

// Multiply and store every partial output, over its range of K.
template <typename Loop>
__device__ void multiply_k_ranges(
    SharedMemory& shared,
    OperandConsumer& stages,
    const CTile& partials,
    TileScheduler schedule,
    int k_blocks,
    int consumer,
    int last
) {
    const int row = consumer_row(consumer);
    TileEpilogue epilogue(shared.epilogue[consumer], consumer, row, last);
    for (; !schedule.done(); schedule.step()) {
        const auto tile = schedule.tile();
        typename Loop::Accumulators accumulators;
        Loop::multiply(stages, accumulators, k_range(schedule, tile, k_blocks).count, row);
        epilogue.store(accumulators, partials, tile);
    }
    epilogue.drain();
}

// The consumers of a kernel that supports split-K. If a cluster splits K, the grid has one cluster
// per tile.
template <typename Loop, typename Schedule, typename... Visitors>
__device__ void multiply_tiles_or_split_k(
    SharedMemory& shared,
    OperandConsumer& stages,
    const CTile& c,
    const Schedule& schedule,
    int k_blocks,
    int consumer,
    int last,
    const Visitors&... visitors
) {
    if constexpr (STORES_PARTIALS) {
        multiply_k_ranges<Loop>(shared, stages, c, schedule, k_blocks, consumer, last);
    } else if constexpr (SPLIT_K == 1) {
        multiply_tiles<Loop>(shared, stages, c, schedule, k_blocks, consumer, last, visitors...);
    } else {
        const int row = consumer_row(consumer), rank = Cluster::split_rank();
        const int blocks = KRange::of<Cluster>(k_blocks).count;
        Accumulators accumulators = {};
        if (blocks > 0) Loop::multiply(stages, accumulators, blocks, row);
        SplitK::Slice slice;
        SplitK::reduce(shared.ring.stages, accumulators, slice);
        if (rank >= SplitK::kSlices) return;
        auto tile = schedule.tile();
        tile.n += rank * SplitK::kSliceColumns;
        TileEpilogue epilogue(shared.epilogue[consumer], consumer, row, last);
        epilogue.store(slice, c, tile, visitors...);
        epilogue.drain();
    }
}

}  // namespace tmaasync::kernels::gemm
