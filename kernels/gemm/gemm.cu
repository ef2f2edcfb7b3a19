// GEMM: C[M, N] = A[M, K] B[K, N], or a batch of GEMMs. A warp-specialised persistent kernel, after
// CUTLASS's KernelTmaWarpSpecializedCooperative and KernelTmaWarpSpecializedPingpong. It
// accumulates in fp32, for integers in int32.
//
//   ATile, BTile    operand tiles, 128 bytes of K deep, 128-byte swizzle; K-major, or for bf16 and
//                   fp16 also M- or N-major. In a batch, they have a leading third side of 1
//   CTile           64 rows of the output by 128, 64 or 32 bytes of columns, with the swizzle of
//                   that width; or, if C is M-major, by all columns of a CTA tile. Its rank is 3 if
//                   the operands' is
//   CONSUMERS       consumer warpgroups
//   ROWS            rows per consumer: 64 or 128
//   BLOCK_N         columns of the CTA tile
//   STAGES          pipeline stages
//   CLUSTER         CTAs that share loads by multicast: tiles of B along M, or with
//   SIDE_BY_SIDE    tiles of A along N
//   SPLIT_K         CTAs that each multiply one range of K of a tile
//   (<tmaasync/structured/split_k.cuh>). A
//                   cluster has CLUSTER * SPLIT_K CTAs
//   STORES_PARTIALS whether K is split over the grid: `batches` is the number of splits, none of
//                   which is empty, and matrix s of C receives the partial output of split s.
//                   split_k_combine.cu adds them up
//   PING_PONG       whether each of two consumers has its own tiles, and the epilogue of one
//                   overlaps the main loop of the other; else the kernel is cooperative: consumers
//                   share every tile
//   GROUP_M         clusters along M that are visited before the next column of tiles: L2 swizzle
//   A_IS_K_MAJOR, B_IS_K_MAJOR, C_IS_N_MAJOR    the contiguous side; if false M, N and M
//
// Grid: clusters of CLUSTER * SPLIT_K CTAs, of 128 * (1 + CONSUMERS) threads. Any number of
// clusters covers the output; with split-K there is one cluster per CLUSTER tiles.
// At the edges of the arrays TMA fills loads with zeros and clips stores. If ATile has boxes of 64
// rows, no box reaches beyond A (kShiftsRows).
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "consumer.cuh"
#include "producer.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k,
    int batches
) {
    const TileScheduler schedule({m, n, CTile::kRank == 3 ? batches : 1});
    const int k_blocks = count_tiles(k, kBlockK);
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run(
        shared, [&] { load_tiles(shared, part_of_whole(a), b, schedule, k_blocks, m); },
        [&](int consumer) {
            auto stages = shared.ring.consumer<Proxy::kAsync>();
            multiply_tiles_or_split_k<Loop>(
                shared, stages, c, schedule, k_blocks, consumer, last_row(m)
            );
        },
        a, b, c
    );
}
