// GEMM with a fused epilogue: C = activation(scale A B + beta addend + bias), computed in fp32 and
// rounded once. Tiles, constants and grid are as in gemm.cu; in addition:
//
//   Bias, BIAS, ACTIVATION    see epilogue_ops.cuh
//   IS_SCALED       whether scale may differ from 1: it is alpha * *scale_a * *scale_b
//   HAS_ADDEND      whether there is an addend: a matrix like C, which may be C itself
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "consumer.cuh"
#include "epilogue_ops.cuh"
#include "producer.cuh"
#include "whole_scale.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int gemm_epilogue_shared_bytes = sizeof(SharedMemory);

static_assert(
    !HAS_ADDEND || !PING_PONG, "ping-pong consumers skip each other's stages, operands alone"
);
static_assert(!HAS_ADDEND || SPLIT_K == 1, "with split-K the stages hold partial accumulators");

using Addends = AddendChunks<TileEpilogue, Stage, CONSUMERS, ROWS>;

struct ScaleAndBias {
    const Bias* bias;
    float scale;
    int m;
    int n;

    template <typename Tile>
    __device__ void apply(SplitK::Slice& accumulators, const Tile& tile) const {
        if constexpr (IS_SCALED) Scale{scale}.apply(accumulators, tile);
        if constexpr (kBiasSide == BiasSide::kColumns) {
            ColumnBias<Bias>{bias, n}.apply(accumulators, tile);
        }
        if constexpr (kBiasSide == BiasSide::kRows) {
            RowBias<Bias>{bias, m, last_row(m)}.apply(accumulators, tile);
        }
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm_epilogue(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const __grid_constant__ CTile addend,
    const Bias* bias,
    const float* scale_a,
    const float* scale_b,
    float alpha,
    float beta,
    int m,
    int n,
    int k,
    int batches
) {
    const TileScheduler schedule({m, n, CTile::kRank == 3 ? batches : 1});
    const int k_blocks = count_tiles(k, kBlockK);
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run(
        shared,
        [&] {
            const auto load_more = [&](OperandProducer& producer, const OutputTile& tile) {
                if constexpr (HAS_ADDEND) Addends::load(producer, addend, tile);
            };
            load_tiles(shared, part_of_whole(a), b, schedule, k_blocks, m, load_more);
        },
        [&](int consumer) {
            wait_for_previous_grids();
            const float scale = IS_SCALED ? whole_scale(alpha, scale_a, scale_b) : 1.0f;
            auto stages = shared.ring.consumer<Proxy::kAsync>();
            const auto multiply = [&](const auto&... visitors) {
                multiply_tiles_or_split_k<Loop>(
                    shared, stages, c, schedule, k_blocks, consumer, last_row(m), visitors...
                );
            };
            const ScaleAndBias scale_and_bias{bias, scale, m, n};
            if constexpr (HAS_ADDEND) {
                const Addend<Addends, OperandConsumer> add{stages, consumer, beta, last_row(m)};
                multiply(scale_and_bias, add, FusedActivation{});
            } else {
                multiply(scale_and_bias, FusedActivation{});
            }
        },
        a, b, c
    );
}
