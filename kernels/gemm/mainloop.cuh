#pragma once

// The main loop of a persistent GEMM, warp-specialised (Bauer et al. 2011; CUTLASS): a producer
// warpgroup loads, consumer warpgroups multiply the tiles in the pipeline.
#include <tmaasync/mainloop.cuh>

#include "../pingpong.cuh"
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

template <typename Operands>
using TileLoop = MainLoop<typename Operands::A, typename Operands::B, ROWS, BLOCK_N>;

// The consumer of the stages of operands: wgmma alone reads them.
using OperandConsumer = RingConsumer<OperandRing<NoSide>, Proxy::kAsync>;

// Multiplies and stores the tiles of a consumer; the epilogue applies the visitors.
template <typename Operands, typename Scheduler, typename... Visitors>
__device__ void multiply_tiles(
    SharedMemory& shared,
    OperandConsumer& stages,
    const CTile& c,
    Scheduler scheduler,
    int consumer,
    const Visitors&... visitors
) {
    using Loop = TileLoop<Operands>;
    TileEpilogue epilogue(shared.epilogue[consumer], consumer, consumer_row(consumer));
    const auto store = [&](Accumulators& accumulators, const auto& tile) {
        epilogue.store(accumulators, c, tile, visitors...);
    };
    if constexpr (PING_PONG) {
        using Order = MmaOrder<CONSUMERS>;
        multiply_tiles_pingpong<Loop, Order>(stages, scheduler, scheduler.k_blocks, consumer, store);
    } else {
        multiply_tiles_cooperative<Loop>(stages, scheduler, scheduler.k_blocks, consumer_row(consumer), store);
    }
    epilogue.drain();
}

// Runs the roles of a CTA's warpgroups: one thread of the producer calls load(shared), every
// consumer calls multiply(shared, consumer). The tensor maps of `tiles` are prefetched.
template <typename Storage = SharedMemory, typename Load, typename Multiply, typename... Tiles>
__device__ __forceinline__ void run_warp_specialized(
    Load load, Multiply multiply, const Tiles&... tiles
) {
    auto& shared = dynamic_shared<Storage>();
    const int warpgroup = warpgroup_index();

    // The next grid may initialise its barriers while this one multiplies.
    launch_dependent_grids();
    if (threadIdx.x == 0) {
        (tiles.prefetch_descriptor(), ...);
        shared.ring.init();
    }
    if constexpr (CLUSTER == 1) {
        __syncthreads();
    } else {
        cluster_sync();
    }

    if (warpgroup == kProducer) {
        release_registers<kProducerRegisters>();
        if (warp_index() == 0 && elect()) {
            wait_for_previous_grids();
            load(shared);
        }
        // The consumers of all CTAs that split K synchronise twice: see split_k.cuh.
        if constexpr (SPLIT_K > 1) {
            cluster_sync();
            cluster_sync();
        }
    } else {
        claim_registers<kConsumerRegisters>();
        multiply(shared, warpgroup - 1);
    }
    // No CTA leaves while a peer may still write into its shared memory or arrive on its barriers.
    if constexpr (CLUSTER > 1 && SPLIT_K == 1) cluster_sync();
}

}  // namespace tmaasync
