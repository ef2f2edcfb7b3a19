#pragma once

// The main loop without block scales.
#include "tensor_memory.cuh"

namespace tmaasync::kernels::gemm {

using Sum = typename AccumulatorOf<ATile::Element>::Type;
using Accumulators = AccumulatorRing<Sum, kN, 2, CTAS>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
using SharedMemory = SharedStorage<Stage, Accumulators>;

// Multiply and store the tiles of `work`; the arguments are as in run_roles().
template <typename Work, typename Load, typename Store, typename... Maps>
__device__ __forceinline__ void multiply_in_tensor_memory(
    SharedMemory& shared,
    const Work& work,
    const Load& load,
    const Store& store,
    const Maps&... maps
) {
    const TmemAllocation<Accumulators::kAllColumns, CTAS> tmem(shared.accumulators.address);
    const auto multiply = [](const auto& d, const auto& stage, const auto&) {
        tcgen05_mma<OperandA, OperandB, CTAS>(d, stage->a, stage->b, stage.iteration() > 0);
    };
    run_roles(shared, tmem.tile<Sum, kN>(), work, load, multiply, store, maps...);
}

}  // namespace tmaasync::kernels::gemm
