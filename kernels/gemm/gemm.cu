// C[M, N] = A[M, K] B[K, N], summed in fp32, or of integers in int32; or a batch of them.
//
//   ATile, BTile    operand tiles, 128 bytes of K deep, 128-byte swizzle; K contiguous, or of bf16
//                   and fp16 M/N. In front of the two sides a third, of 1, where the matrix is one
//                   of a batch
//   CTile           64 rows of the output by 128, 64 or 32 bytes of columns, with the swizzle of
//                   that width; or, where its columns are contiguous, by all columns of a block.
//                   Of rank 3 like the operands
//   CONSUMERS       warpgroups that multiply
//   ROWS            rows of each: 64 or 128
//   BLOCK_N         columns of one CTA's tile
//   STAGES          buffers in the operand ring
//   CLUSTER         CTAs that share loads by multicast: one below the other those of B, or
//   SIDE_BY_SIDE    side by side those of A
//   SPLIT_K         CTAs of a cluster that each multiply a part of K: see split_k.cuh. A cluster
//                   has CLUSTER times as many
//   PING_PONG       whether each of two consumers has tiles of its own, and one multiplies while
//                   the other stores; else they share every tile
//   GROUP_M         clusters along M that are walked before the next column of tiles
//   A_IS_K_MAJOR, B_IS_K_MAJOR, C_IS_N_MAJOR    which side is contiguous; else M, N and M
//
// Grid: clusters of CLUSTER * SPLIT_K CTAs, of 128 * (1 + CONSUMERS) threads; any number covers the
// output, but where K is split, as many as there are tiles for.
// Rows and columns beyond the arrays are TMA's zero fill on loads and its clipping on stores.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "producer.cuh"

using namespace tmaasync;

extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(kThreads, 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k,
    int batches
) {
    const TileWalk walk(m, n, k, CTile::kRank == 3 ? batches : 1);
    run_roles(
        [&](SharedMemory& shared) { load_tiles(shared, a, b, walk, [](auto&, const auto&) {}); },
        [&](SharedMemory& shared, int consumer) {
            multiply_whole_or_split<Operands>(shared, c, walk, consumer, Untouched{});
        },
        a, b, c
    );
}
