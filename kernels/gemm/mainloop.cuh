#pragma once

// The main loop of a persistent GEMM, warp-specialised (Bauer et al. 2011; CUTLASS): a producer
// warpgroup loads, consumer warpgroups multiply the tiles in the pipeline.
#include <tmaasync/mainloop.cuh>

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
        multiply_tiles_pingpong<Loop>(stages, scheduler, scheduler.k_blocks, consumer, store);
    } else {
        multiply_tiles_cooperative<Loop>(
            stages, scheduler, scheduler.k_blocks, consumer_row(consumer), store
        );
    }
    epilogue.drain();
}

}  // namespace tmaasync
