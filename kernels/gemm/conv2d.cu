// Implicit GEMM (Chetlur et al. 2014, cuDNN) convolution of NHWC images: Out[M, K] = patches[M, R *
// S * C] filters[K, R * S * C]^T, accumulated in fp32. TMA gathers the patches, the left operand,
// from the images (im2col). A row is an output pixel, m = (n * P + p) * Q + q.
//
//   ATile           im2col tile: CONSUMERS * ROWS pixels by 64 columns, in chunks of 64, 32 or 16
//                   channels with the swizzle of that width; a box has all pixels
//   BTile           filters [K, R, S, C]: BLOCK_N by the same chunks; a box has a CTA's share of
//                   the filters and one tap
//   CTile, CONSUMERS, ROWS, BLOCK_N, STAGES, CLUSTER, GROUP_M, PING_PONG, C_IS_N_MAJOR    as in
//                   gemm.cu; SPLIT_K is 1, and SIDE_BY_SIDE and STORES_PARTIALS are false
//   FOLDED          whether adjacent pixels of a row of the images are folded into one pixel with
//                   the channels of a chunk. The filters are then [K, R, 1, S * C], and
//   FILTER_OFFSET   is the offset of their first value in the first folded tap
//   Bias, BIAS, ACTIVATION    the epilogue's operations: see epilogue_ops.cuh
//
// Grid, threads and edges are as in gemm.cu. If no chunk divides the channels, both tiles have
// zeros after the last channel, so that every tap takes whole chunks. A stage of narrow chunks
// holds several taps.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "consumer.cuh"
#include "epilogue_ops.cuh"
#include "filter_chunks.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

using Loop =
    TileLoop<WgmmaOperand<typename ATile::Matrix, Major::kK>, WgmmaOperand<BTile, Major::kK>>;

extern "C" __device__ const int conv2d_shared_bytes = sizeof(SharedMemory);

static_assert(!SIDE_BY_SIDE, "the CTAs of a cluster share the filters, which they multicast");
static_assert(SPLIT_K == 1 && !STORES_PARTIALS, "a CTA has all of K");
static_assert(ATile::side(0) == kBlockM && ATile::kPixels == kBlockM, "a box has all pixels");
static_assert(BTile::side(0) == BLOCK_N && ATile::kChannels == kChunkChannels, "see above");
static_assert(BTile::boxes(0) == CLUSTER, "a box has the filters that a CTA loads for all");

// Load this CTA's share of a chunk of the filters.
__device__ void load_filters(
    typename BTile::Shared& shared,
    SharedMemBarrier& full,
    const BTile& filters,
    const typename ATile::Column& column,
    int n,
    int chunk
) {
    const int rank = CLUSTER == 1 ? 0 : block_rank_in_cluster();
    const auto at = filters_at(column, n + rank * BTile::box_side(0));
    const int box = chunk * CLUSTER + rank;
    if constexpr (CLUSTER == 1) {
        filters.async_copy_box(shared, full, at, box);
    } else {
        constexpr u16 kEveryCta = (1 << CLUSTER) - 1;
        filters.async_multicast_load_box(shared, full, at, box, kEveryCta);
    }
}

__device__ void load_tiles(
    SharedMemory& shared,
    const ATile& images,
    const BTile& filters,
    const TileScheduler& schedule,
    int k_blocks
) {
    auto producer = shared.ring.producer();
    for (const auto tile : schedule) {
        auto column = images.column({0, tile.m});
        for (const auto stage : producer.produce(k_blocks)) {
#pragma unroll
            for (int chunk = 0; chunk < kChunksPerStage; ++chunk, images.step(column)) {
                images.async_copy_column(stage->a, stage.full(), column, chunk);
                load_filters(stage->b, stage.full(), filters, column, tile.n, chunk);
            }
        }
    }
}

struct FilterBias {
    const Bias* bias;
    int k;

    template <typename Tile>
    __device__ void apply(Accumulators& accumulators, const Tile& tile) const {
        if constexpr (kBiasSide == BiasSide::kColumns) {
            ColumnBias<Bias>{bias, k}.apply(accumulators, tile);
        }
    }
};

// `m` output pixels, `k` filters, `columns` of the patch matrix: taps times padded channels.
extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) conv2d(
    const __grid_constant__ ATile images,
    const __grid_constant__ BTile filters,
    const __grid_constant__ CTile out,
    const Bias* bias,
    int m,
    int k,
    int columns
) {
    const TileScheduler schedule({m, k});
    const int k_blocks = count_tiles(columns, kBlockK);
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run(
        shared, [&] { load_tiles(shared, images, filters, schedule, k_blocks); },
        [&](int consumer) {
            if constexpr (kBiasSide != BiasSide::kNone) wait_for_previous_grids();
            auto stages = shared.ring.consumer<Proxy::kAsync>();
            multiply_tiles<Loop>(
                shared, stages, out, schedule, k_blocks, consumer, kUnshifted, FilterBias{bias, k},
                FusedActivation{}
            );
        },
        images, filters, out
    );
}
