// C[M, N] = A[M, K] B[K, N] in fp32 accumulators.
//
//   ATile, BTile    operand tiles, 64 deep, 128-byte swizzle; K or M/N contiguous
//   CTile           64 rows of the output by 128 bytes of columns, or 64, with the swizzle of that
//                   width; or, where its columns are contiguous, by all columns of a block
//   CONSUMERS       warpgroups that multiply
//   ROWS            rows of each: 64 or 128
//   BLOCK_N         columns of one CTA's tile
//   STAGES          buffers in the operand ring
//   CLUSTER         CTAs along M that share B by multicast; with SHARES_A, which is not for this
//                   kernel, CTAs along N that share A
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

__device__ Coordinates<2> a_start(int m, int k) {
    return A_IS_K_MAJOR ? Coordinates<2>{k, m} : Coordinates<2>{m, k};
}

__device__ Coordinates<2> b_start(int n, int k) {
    return B_IS_K_MAJOR ? Coordinates<2>{k, n} : Coordinates<2>{n, k};
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
            a.async_copy(stage.a, full, a_start(start.m, block * kBlockK));
            load_b(stage.b, full, b, b_start(start.n, block * kBlockK));
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const TileWalk walk(m, n, k);
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
