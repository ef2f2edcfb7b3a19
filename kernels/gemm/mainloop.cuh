#pragma once

// The main loop of a persistent GEMM, warp-specialised (Bauer et al. 2011; CUTLASS): a producer
// warpgroup loads, consumer warpgroups multiply the tiles in the pipeline.
#include "config.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
#include "scheduler.cuh"

namespace tmaasync {

// How wgmma reads the operand tiles of a stage; each is a WgmmaOperand.
template <typename OperandA, typename OperandB>
struct OperandPair {
    using A = OperandA;
    using B = OperandB;
    static_assert(A::kDepth == kBlockK && B::kDepth == kBlockK, "a stage is 128 bytes of K deep");
};

__device__ void fence_accumulators(Accumulators& accumulators) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
        wgmma_fence_operands(accumulators[row_block]);
    }
}

// Multiplies one tile. Calls on_issued() when all its MMAs are issued.
template <typename Operands, typename OnIssued>
__device__ void multiply_tile(
    SharedMemory& shared,
    StageState& state,
    Accumulators& accumulators,
    int consumer,
    int k_blocks,
    const OnIssued& on_issued
) {
    u32 previous = 0;
    for (int block = 0; block < k_blocks; ++block, state.step()) {
        auto& stage = shared.ring.stages[state.index];
        u64 a[kRowBlocks];
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
            const int row = consumer_row(consumer) + row_block * kMmaRows;
            a[row_block] = Operands::A::descriptor(stage.a, row);
        }
        const u64 b = Operands::B::descriptor(stage.b, 0);
        shared.ring.consumer_wait(state);
        fence_accumulators(accumulators);
        wgmma_fence();
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
            wgmma_tile<typename Operands::A, typename Operands::B>(
                accumulators[row_block], a[row_block], b, block > 0
            );
        }
        wgmma_commit_group();
        // One group stays in flight, so the tensor cores never drain; the one before has finished.
        wgmma_wait_group<1>();
        fence_accumulators(accumulators);
        if (block > 0) shared.ring.consumer_release<Proxy::kAsync>(previous);
        previous = state.index;
    }
    on_issued();
    wgmma_wait_group<0>();
    fence_accumulators(accumulators);
    shared.ring.consumer_release<Proxy::kAsync>(previous);
}

// Ping-pong consumers (CUTLASS's KernelTmaWarpSpecializedPingpong): each has every second tile, and
// its epilogue overlaps the other's main loop. A consumer first looks at the pipeline when its turn
// comes: by then the other has waited for all of its stages, so that no barrier can complete two
// phases unseen, which their parity would hide.
template <typename Operands, typename Scheduler, typename Epilogue>
__device__ void multiply_tiles_pingpong(
    SharedMemory& shared,
    const CTile& c,
    Scheduler scheduler,
    int consumer,
    const Epilogue& epilogue
) {
    using Order = MmaOrder<CONSUMERS>;
    auto state = StageState::for_consumer();
    u32 chunks = 0;
    bool has_turn = consumer == 0;
    if (!has_turn && !scheduler.done()) {
        scheduler.step();
        state.advance(scheduler.k_blocks);
    }
    while (!scheduler.done()) {
        const auto tile = scheduler.tile();
        scheduler.step();
        const bool is_last = scheduler.done();
        if (!has_turn) Order::wait(consumer);
        has_turn = false;
        Accumulators accumulators;
        multiply_tile<Operands>(shared, state, accumulators, consumer, scheduler.k_blocks, [&] {
            if (!is_last) Order::release(1 - consumer);
        });
        epilogue.apply(accumulators, state, tile);
        store_tile(shared, chunks, accumulators, epilogue, c, consumer, tile);
        if (is_last) break;
        scheduler.step();
        state.advance(scheduler.k_blocks);
    }
    wait_for_stores();
}

// Cooperative consumers (CUTLASS's KernelTmaWarpSpecializedCooperative): all share every tile.
template <typename Operands, typename Scheduler, typename Epilogue>
__device__ void multiply_tiles_cooperative(
    SharedMemory& shared,
    const CTile& c,
    Scheduler scheduler,
    int consumer,
    const Epilogue& epilogue
) {
    auto state = StageState::for_consumer();
    u32 chunks = 0;
    for (; !scheduler.done(); scheduler.step()) {
        const auto tile = scheduler.tile();
        Accumulators accumulators;
        multiply_tile<Operands>(shared, state, accumulators, consumer, scheduler.k_blocks, [] {});
        epilogue.apply(accumulators, state, tile);
        store_tile(shared, chunks, accumulators, epilogue, c, consumer, tile);
    }
    wait_for_stores();
}

// Scheduler has the interface of TileScheduler, Epilogue the interface of IdentityEpilogue.
template <typename Operands, typename Scheduler, typename Epilogue>
__device__ void multiply_tiles(
    SharedMemory& shared,
    const CTile& c,
    Scheduler scheduler,
    int consumer,
    const Epilogue& epilogue
) {
    if constexpr (PING_PONG) {
        multiply_tiles_pingpong<Operands>(shared, c, scheduler, consumer, epilogue);
    } else {
        multiply_tiles_cooperative<Operands>(shared, c, scheduler, consumer, epilogue);
    }
}

}  // namespace tmaasync
