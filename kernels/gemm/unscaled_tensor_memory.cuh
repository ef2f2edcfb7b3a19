#pragma once

// The main loop of gemm_tensor_memory.cu and gemm_tensor_memory_epilogue.cu, without block scales.
#include "tensor_memory.cuh"

namespace tmaasync::kernels::gemm {

using Sum = typename AccumulatorOf<ATile::Element>::Type;
using Accumulators = AccumulatorRing<Sum, kN, 2, CTAS>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
using SharedMemory = SharedStorage<Stage, Accumulators>;

// store(output, accumulators, tile) stores the next accumulators of a tile.
template <typename Store>
__device__ __forceinline__ void multiply_in_tensor_memory(
    SharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const CTile& c,
    const Tiles& tiles,
    int k,
    const Store& store
) {
    const TmemAllocation<Accumulators::kAllColumns, CTAS> tmem(shared.accumulators.address);
    const auto load = [&](const auto& stage, const OutputTile& tile) {
        load_operands(stage, a, b, tile);
    };
    const auto multiply = [](const auto& d, const auto& stage, const OutputTile&) {
        tcgen05_mma<OperandA, OperandB, CTAS>(d, stage->a, stage->b, stage.iteration() > 0);
    };
    run_roles(shared, tmem.tile<Sum, kN>(), tiles, k, load, multiply, store, a, b, c);
}

}  // namespace tmaasync::kernels::gemm
