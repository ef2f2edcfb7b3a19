// C[M, N] = A[M, K] B[K, N] in fp32 accumulators; or a batch of them.
//
//   ATile, BTile    operand tiles, 64 deep, 128-byte swizzle; K or M/N contiguous. In front of the
//                   two sides a third, of 1, where the matrix is one of a batch
//   CTile           64 rows of the output by 128, 64 or 32 bytes of columns, with the swizzle of
//                   that width; or, where its columns are contiguous, by all columns of a block.
//                   Of rank 3 like the operands
//   CONSUMERS       warpgroups that multiply
//   ROWS            rows of each: 64 or 128
//   BLOCK_N         columns of one CTA's tile
//   STAGES          buffers in the operand ring
//   CLUSTER         CTAs along M that share B by multicast
//   GROUP_M         clusters along M that are walked before the next column of tiles
//   A_IS_K_MAJOR, B_IS_K_MAJOR, C_IS_N_MAJOR    which side is contiguous; else M, N and M
//
// Grid: a multiple of CLUSTER CTAs, of 128 * (1 + CONSUMERS) threads; any number covers the output.
// Rows and columns beyond the arrays are TMA's zero fill on loads and its clipping on stores.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

using OperandA = WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>;
using OperandB = WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>;

struct StageExtras {};

#include "product.cuh"

extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

__device__ Coordinates<ATile::kRank> a_start(const TileWalk::Start& start, int k) {
    const int m = start.m;
    return in_batch<ATile::kRank>(A_IS_K_MAJOR ? k : m, A_IS_K_MAJOR ? m : k, start.batch);
}

__device__ Coordinates<BTile::kRank> b_start(const TileWalk::Start& start, int k) {
    const int n = start.n;
    return in_batch<BTile::kRank>(B_IS_K_MAJOR ? k : n, B_IS_K_MAJOR ? n : k, start.batch);
}

__device__ void load_tiles(SharedMemory& shared, const ATile& a, const BTile& b, TileWalk walk) {
    auto place = Ring::for_producer();
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        for (int block = 0; block < walk.k_blocks; ++block, place.step()) {
            auto& stage = shared.stages[place.index];
            auto& full = shared.full[place.index];
            // Every consumer of this stage, in every CTA of the cluster, has read it.
            shared.empty[place.index].wait(place.phase);
            full.expect_bytes(kStageBytes);
            a.async_copy(stage.a, full, a_start(start, block * kBlockK));
            load_b(stage.b, full, b, b_start(start, block * kBlockK));
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k,
    int batches
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const TileWalk walk(m, n, k, CTile::kRank == 3 ? batches : 1);
    const int group = warpgroup_index();

    // The next grid may open its rings while this one multiplies.
    launch_dependent_grids();
    if (threadIdx.x == 0) {
        a.prefetch_descriptor();
        b.prefetch_descriptor();
        c.prefetch_descriptor();
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
            load_tiles(shared, a, b, walk);
        }
    } else {
        claim_registers<kConsumerRegisters>();
        multiply_tiles(shared, c, walk, group - 1, [](Sums&, int) {});
    }
    // No CTA leaves while a peer may still write into its shared memory or arrive on its barriers.
    if constexpr (CLUSTER > 1) cluster_sync();
}
