// Out[M, K] = patches(images)[M, R * S * C] filters[K, R * S * C]^T in fp32 accumulators: a
// convolution of NHWC images as a matrix product whose left operand TMA gathers from the images.
// A row is an output pixel, m = (n * P + p) * Q + q.
//
//   ATile           im2col tile: CONSUMERS * ROWS pixels by 64 channels in one box
//   BTile           filters [K, R, S, C]: BLOCK_N of them, one tap, 64 channels
//   CTile, CONSUMERS, ROWS, BLOCK_N, STAGES, CLUSTER, GROUP_M, C_IS_N_MAJOR    as in gemm.cu
//   Bias            its element type
//   HAS_BIAS, RELU  what becomes of the sums before they are rounded
//
// Grid, threads and edges as in gemm.cu. Where no chunk divides the channels, both tiles have zeros
// behind the last, so that every tap takes whole chunks.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

// The filters' tile as the matrix that it is in shared memory.
struct FilterMatrix : BTile {
    __device__ static constexpr int side(int dim) { return BTile::side(dim == 0 ? 0 : 3); }
};

using OperandA = WgmmaOperand<typename ATile::Matrix, Major::kK>;
using OperandB = WgmmaOperand<FilterMatrix, Major::kK>;

#include "product.cuh"

extern "C" __device__ const int conv2d_shared_bytes = sizeof(SharedMemory);

static_assert(ATile::kBoxes == 1 && ATile::side(0) == kBlockM, "one box of a block's pixels");
static_assert(BTile::side(0) == BLOCK_N && BTile::side(1) * BTile::side(2) == 1, "one tap");

__device__ void load_tiles(
    SharedMemory& shared, const ATile& images, const BTile& filters, TileWalk walk
) {
    auto place = Ring::for_producer();
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        auto column = images.column({0, start.m});
        for (int block = 0; block < walk.k_blocks; ++block, place.step(), images.step(column)) {
            auto& stage = shared.stages[place.index];
            auto& full = shared.full[place.index];
            const Coordinates<4> filter{
                column.channel(), static_cast<i32>(column.tap[0]), static_cast<i32>(column.tap[1]),
                start.n
            };
            // Every consumer of this stage, in every CTA of the cluster, has read it.
            shared.empty[place.index].wait(place.phase);
            full.expect_bytes(kStageBytes);
            images.async_copy_column(stage.a, full, column);
            load_b(stage.b, full, filters, filter);
        }
    }
}

// The bias of two neighbouring columns; what is beyond the last filter is not stored.
__device__ float2 bias_of(const Bias* bias, int column, int k) {
    struct alignas(2 * sizeof(Bias)) Pair {
        Bias low, high;
    };
    if (column + 1 < k) {
        const Pair pair = *reinterpret_cast<const Pair*>(bias + column);
        return {static_cast<float>(pair.low), static_cast<float>(pair.high)};
    }
    return {column < k ? static_cast<float>(bias[column]) : 0.0f, 0.0f};
}

__device__ void add_bias(Sums& sums, const Bias* bias, int n, int k) {
    const int first = n + static_cast<int>(lane_index()) % 4 * 2;
#pragma unroll
    for (int eight = 0; eight < BLOCK_N / 8; ++eight) {
        const float2 more = bias_of(bias, first + eight * 8, k);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            float* s = sums[part] + eight * 4;
            s[0] += more.x;
            s[1] += more.y;
            s[2] += more.x;
            s[3] += more.y;
        }
    }
}

// Unlike fmaxf this hands NaN on.
__device__ void clamp_below(Sums& sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i) {
            sums[part][i] = sums[part][i] < 0 ? 0 : sums[part][i];
        }
    }
}

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
    auto& shared = dynamic_shared<SharedMemory>();
    const TileWalk walk(m, k, columns);
    const int group = warpgroup_index();

    // The next grid may open its rings while this one multiplies.
    launch_dependent_grids();
    if (threadIdx.x == 0) {
        images.prefetch_descriptor();
        filters.prefetch_descriptor();
        out.prefetch_descriptor();
        open_ring(shared);
    }
    if constexpr (CLUSTER == 1) {
        __syncthreads();
    } else {
        cluster_sync();
    }

    if (group == kProducer) {
        release_registers<kProducerRegisters>();
        if (warp_index() == 0 && elect()) {
            wait_for_previous_grids();
            load_tiles(shared, images, filters, walk);
        }
    } else {
        claim_registers<kConsumerRegisters>();
        if constexpr (HAS_BIAS) wait_for_previous_grids();
        multiply_tiles(shared, out, walk, group - 1, [=](Sums& sums, int n) {
            if constexpr (HAS_BIAS) add_bias(sums, bias, n, k);
            if constexpr (RELU) clamp_below(sums);
        });
    }
    // No CTA leaves while a peer may still write into its shared memory or arrive on its barriers.
    if constexpr (CLUSTER > 1) cluster_sync();
}
