#pragma once

// The main loop with float32 scales. promoted_gemm_tensor_memory.cu explains tiles and constants.
#include "float_scales.cuh"
#include "tensor_memory.cuh"

namespace tmaasync::kernels::gemm {

static_assert(kK == kScaleBlock, "a stage has the depth that a scale serves");
static_assert(kN == kScaleBlock, "half of a thread's row is in registers");

constexpr int kSets = 512 / kN, kConsumers = 2, kOwnColumns = kN / kConsumers;
using Accumulators = AccumulatorRing<float, kN, kSets, CTAS, 4 * kConsumers>;
using ScaleRing = Ring<StageScales, kSets, ConsumerWarps<4 * kConsumers>>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory : SharedStorage<Stage, Accumulators> {
    ScaleRing scales;

    __device__ void init() {
        SharedStorage<Stage, Accumulators>::init();
        scales.init();
    }
};

// Add the thread's columns of a stage, from `first` on, to its accumulators, times their scales and
// the one of A at `row`.
__device__ __forceinline__ void promote(
    float (&total)[kOwnColumns],
    AccumulatorConsumer<Accumulators>& accumulators,
    const StageScales& scales,
    int row,
    int first,
    int n,
    int block
) {
    constexpr int kColumns = 32;
    const float of_row = scales.a.data()[row];
    const auto of_column = [&](int column) {
        if constexpr (kScalesEveryColumn) return scales.b.data()[column];
        return b_scale(scales, n, 0, block);
    };
    const auto tmem = accumulators.acquire();
#pragma unroll
    for (int column = 0; column < kOwnColumns; column += kColumns) {
        float partial[kColumns];
        tmem.load(partial, first + column);
        tmem_wait_loads();
        if (column + kColumns == kOwnColumns) accumulators.release();
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const float scale = of_row * of_column(first + column + i);
            total[column + i] = fmaf(scale, partial[i], total[column + i]);
        }
    }
}

// Multiply, promote and store the tiles of `work`, which in_arrays(tile) finds in A and B.
template <typename Work, typename InArrays>
__device__ __forceinline__ void multiply_and_promote(
    SharedMemory& shared,
    const Work& work,
    const InArrays& in_arrays,
    const ATile& a,
    const BTile& b,
    const AScaleTile& a_scales,
    const BScaleTile& b_scales,
    const CTile& c
) {
    const TmemAllocation<Accumulators::kAllColumns, CTAS> tmem(shared.accumulators.address);
    auto filled = shared.scales.producer();
    auto scales = shared.scales.consumer();

    const auto load = [&](const auto& stage, const auto& tile, int block) {
        const OutputTile at = in_arrays(tile);
        load_operands(stage, a, b, at, block);
        const auto of_block = filled.acquire();
        const int first_row = at.m / kScalesPerLoad * kScalesPerLoad;
        a_scales.async_copy(of_block->a, of_block.full(), {first_row, block});
        const auto of_b = b_scales_at(at.n, block);
        b_scales.async_copy(
            of_block->b, of_block.full(),
            in_batch<BScaleTile::kRank>(of_b.values[0], of_b.values[1], at.batch)
        );
    };
    const auto multiply = [](const auto& d, const auto& stage, const auto&) {
        tcgen05_mma<OperandA, OperandB, CTAS>(d, stage->a, stage->b, false);
    };
    const auto store = [&](auto& output, auto& accumulators, const auto& tile, int consumer) {
        const int row = in_arrays(tile).m % kScalesPerLoad + thread_in_warpgroup();
        const int first = consumer * kOwnColumns;
        float total[kOwnColumns] = {};
        for (const auto& stage : scales.consume(work.range(tile).count)) {
            promote(total, accumulators, *stage, row, first, tile.n, stage.iteration());
        }
        auto own = tile;
        own.n += first;
        output.store_row(total, c, own);
    };
    run_roles<true>(
        shared, tmem.tile<float, kN>(), work, load, multiply, store, a, b, a_scales, b_scales, c
    );
}

}  // namespace tmaasync::kernels::gemm
