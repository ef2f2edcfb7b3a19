// GEMM: C[M, N] = A[M, K] B[K, N], or a batch of them. A warp-specialised persistent kernel, after
// CUTLASS's KernelTmaWarpSpecializedCooperative and KernelTmaWarpSpecializedPingpong. Accumulates
// in fp32, of integers in int32.
//
//   ATile, BTile    operand tiles, 128 bytes of K deep, 128-byte swizzle; K-major, or of bf16 and
//                   fp16 M- or N-major. In a batch, a third side of 1 comes before the two
//   CTile           64 rows of the output by 128, 64 or 32 bytes of columns, with the swizzle of
//                   that width; or, where C is M-major, by all columns of a CTA tile. Of rank 3
//                   like the operands
//   CONSUMERS       consumer warpgroups
//   ROWS            rows of each: 64 or 128
//   BLOCK_N         columns of the CTA tile
//   STAGES          pipeline stages
//   CLUSTER         CTAs that share loads by multicast: tiles of B along M, or with
//   SIDE_BY_SIDE    tiles of A along N
//   SPLIT_K         CTAs of a cluster that each multiply a range of K (<tmaasync/split_k.cuh>). A
//                   cluster has CLUSTER times as many
//   STORES_PARTIALS whether K is split over the grid: `batches` is the number of splits, none of
//                   them empty, and matrix s of C receives the partial output of the s-th.
//                   split_k_combine.cu adds them up
//   PING_PONG       whether each of two consumers has tiles of its own, and the epilogue of one
//                   overlaps the main loop of the other; else the kernel is cooperative: consumers
//                   share every tile
//   GROUP_M         clusters along M that are visited before the next column of tiles: L2 swizzle
//   A_IS_K_MAJOR, B_IS_K_MAJOR, C_IS_N_MAJOR    which side is contiguous; else M, N and M
//
// Grid: clusters of CLUSTER * SPLIT_K CTAs, of 128 * (1 + CONSUMERS) threads. Any number of them
// covers the output; with split-K there are as many as tiles.
// At the edges of the arrays TMA fills loads with zeros and clips stores. Where ATile has boxes of
// 64 rows, none is loaded from outside of A (kShiftsRows).
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "consumer.cuh"
#include "producer.cuh"

using namespace tmaasync;

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
        shared, [&] { load_tiles(shared, a, b, schedule, k_blocks, m, [](auto&, const auto&) {}); },
        [&](int consumer) {
            auto stages = shared.ring.consumer<Proxy::kAsync>();
            multiply_tiles_or_split_k<Loop>(
                shared, stages, c, schedule, k_blocks, consumer, last_row(m)
            );
        },
        a, b, c
    );
}
