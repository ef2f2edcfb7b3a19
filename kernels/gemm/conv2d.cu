// Out[M, K] = patches(images)[M, R * S * C] filters[K, R * S * C]^T in fp32 accumulators: a
// convolution of NHWC images as a matrix product whose left operand TMA gathers from the images.
// A row is an output pixel, m = (n * P + p) * Q + q.
//
//   ATile           im2col tile: CONSUMERS * ROWS pixels by 64 columns, in chunks of 64, 32 or 16
//                   channels with the swizzle of that width; a box has all pixels
//   BTile           filters [K, R, S, C]: BLOCK_N by the same chunks; a box has a CTA's share of
//                   the filters and one tap
//   CTile, CONSUMERS, ROWS, BLOCK_N, STAGES, CLUSTER, GROUP_M, PING_PONG, C_IS_N_MAJOR
//                   as in gemm.cu
//   Bias, BIAS, ACTIVATION    what becomes of the sums before they are rounded: see epilogue.cuh
//
// Grid, threads and edges as in gemm.cu. Where no chunk divides the channels, both tiles have zeros
// behind the last, so that every tap takes whole chunks. A stage of narrow chunks holds several
// taps.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "epilogue_ops.cuh"
#include "mainloop.cuh"

using namespace tmaasync;

using Operands =
    OperandPair<WgmmaOperand<typename ATile::Matrix, Major::kK>, WgmmaOperand<BTile, Major::kK>>;

extern "C" __device__ const int conv2d_shared_bytes = sizeof(SharedMemory);

constexpr int kChunkChannels = ATile::kChannels;
constexpr int kChunksPerStage = kBlockK / kChunkChannels;

static_assert(ATile::side(0) == kBlockM && ATile::kPixels == kBlockM, "a box has all pixels");
static_assert(BTile::side(0) == BLOCK_N && BTile::box_side(3) == kChunkChannels, "see above");
static_assert(BTile::boxes(0) == CLUSTER, "a box has the filters that a CTA loads for all");

// A CTA's share of the filters' chunk that starts with this channel and tap.
__device__ void load_filters(
    typename BTile::Shared& shared,
    SharedMemBarrier& full,
    const BTile& filters,
    const typename ATile::Column& column,
    int n,
    int chunk
) {
    const int rank = CLUSTER == 1 ? 0 : block_rank_in_cluster();
    const Coordinates<4> at{
        column.channel(), static_cast<i32>(column.tap[0]), static_cast<i32>(column.tap[1]),
        n + rank * BTile::box_side(0)
    };
    const int box = chunk * CLUSTER + rank;
    if constexpr (CLUSTER == 1) {
        filters.async_copy_box(shared, full, at, box);
    } else {
        constexpr u16 kEveryCta = (1 << CLUSTER) - 1;
        filters.async_multicast_load_box(shared, full, at, box, kEveryCta);
    }
}

__device__ void load_tiles(
    SharedMemory& shared, const ATile& images, const BTile& filters, TileWalk walk
) {
    auto place = Ring::for_producer();
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        auto column = images.column({0, start.m});
        for (int block = 0; block < walk.k_blocks; ++block, place.step()) {
            auto& stage = shared.stages[place.index];
            auto& full = shared.full[place.index];
            // Every consumer of this stage, in every CTA of the cluster, has read it.
            shared.empty[place.index].wait(place.phase);
            full.expect_bytes(kStageBytes);
#pragma unroll
            for (int chunk = 0; chunk < kChunksPerStage; ++chunk, images.step(column)) {
                images.async_copy_column(stage.a, full, column, chunk);
                load_filters(stage.b, full, filters, column, start.n, chunk);
            }
        }
    }
}

struct Finish {
    const Bias* bias;
    int k;

    __device__ void tile(Sums& sums, Ring&, const TileWalk::Start& start) const {
        if constexpr (kBiasSide == BiasSide::kColumns) add_bias(sums, bias, start.n, k);
    }
    __device__ void chunk(float* sums) const { activate_chunk(sums); }
};

// `m` output pixels, `k` filters, `columns` of the patch matrix: taps times padded channels.
extern "C" __global__ void __launch_bounds__(kThreads, 1) conv2d(
    const __grid_constant__ ATile images,
    const __grid_constant__ BTile filters,
    const __grid_constant__ CTile out,
    const Bias* bias,
    int m,
    int k,
    int columns
) {
    const TileWalk walk(m, k, columns);
    run_roles(
        [&](SharedMemory& shared) { load_tiles(shared, images, filters, walk); },
        [&](SharedMemory& shared, int consumer) {
            if constexpr (kBiasSide != BiasSide::kNone) wait_for_previous_grids();
            multiply_tiles<Operands>(shared, out, walk, consumer, Finish{bias, k});
        },
        images, filters, out
    );
}
