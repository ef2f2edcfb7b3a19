// Grouped GEMM (MoE): C[rows of a group, N] = A[the same rows, K] B[group, K, N], accumulated in
// fp32. Groups have any number of rows and are packed in A and C without padding. A tile may load
// and multiply rows beyond its group: an output row depends only on its own row of A, and the map
// of C drops rows beyond the group.
//
//   ATile           rows of A: 64 deep, 128-byte swizzle, K contiguous
//   BTile           (1, ...) one of the matrices: the same depth and swizzle; K or N contiguous
//   CTile           RaggedTensorMap of C, with the tile of gemm.cu
//   CONSUMERS, ROWS, BLOCK_N, STAGES, CLUSTER, SIDE_BY_SIDE, GROUP_M, PING_PONG, A_IS_K_MAJOR,
//   B_IS_K_MAJOR    as in gemm.cu; SPLIT_K is 1, and STORES_PARTIALS is false
//   C_IS_N_MAJOR    if false, swap AB (as in TensorRT-LLM), for groups of few rows: ATile is one of
//                   the matrices, BTile is rows of A, and groups lie along N
//
// Grid, threads and edges are as in gemm.cu. All tiles of a cluster lie in one group, along M; if a
// group has an odd number of rows of tiles, a cluster's tiles in its last row lie along N.
// `broken_group` gets the number, counted from 1, of a group that is cut.
#include <tmaasync/structured/grouped_scheduler.cuh>
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "consumer.cuh"
#include "groups.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

using Loop = TileLoop<
    WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>,
    WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>>;

extern "C" __device__ const int grouped_gemm_shared_bytes = sizeof(SharedMemory);

constexpr bool kSwapsAB = !C_IS_N_MAJOR;
static_assert(kSwapsAB ? B_IS_K_MAJOR : A_IS_K_MAJOR, "rows of A are rows in memory");

using GroupScheduler = GroupedScheduler<kBlockM, BLOCK_N, CLUSTER, GROUP_M, kSwapsAB>;

// The start of an operand's tile: `first` counts along M or N; for rows of A, within the group.
template <int kRank, bool kIsKMajor>
__device__ Coordinates<kRank> operand_at(const GroupTile& tile, int first, int k) {
    if (kRank == 2) first += tile.rows.start;
    return in_batch<kRank>(kIsKMajor ? k : first, kIsKMajor ? first : k, tile.group);
}

__device__ void load_tiles(
    SharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const GroupScheduler& schedule,
    int k_blocks
) {
    auto producer = shared.ring.producer();
    for (const auto tile : schedule) {
        for (const auto stage : producer.produce(k_blocks)) {
            const int k = stage.iteration() * kBlockK;
            const auto a_at = operand_at<ATile::kRank, A_IS_K_MAJOR>(tile, tile.m, k);
            const auto b_at = operand_at<BTile::kRank, B_IS_K_MAJOR>(tile, tile.n, k);
            a.async_copy(stage->a, stage.full(), a_at);
            if (tile.shares_b) {
                stage.async_multicast_load(b, stage->b, b_at);
            } else {
                b.async_copy(stage->b, stage.full(), b_at);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) grouped_gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const i32* ends,
    int count,
    int total_rows,
    int n,
    int k,
    i32* broken_group
) {
    const RowGroups groups{ends, count, total_rows};
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run_with_helpers(
        shared,
        [&] { load_tiles(shared, a, b, GroupScheduler(groups, n), count_tiles(k, kBlockK)); },
        [&](int helper) { report_groups(groups, broken_group, helper); },
        [&](int consumer) {
            // An earlier grid may have written the ends.
            wait_for_previous_grids();
            auto stages = shared.ring.consumer<Proxy::kAsync>();
            const int k_blocks = count_tiles(k, kBlockK);
            multiply_tiles<Loop>(
                shared, stages, c, GroupScheduler(groups, n), k_blocks, consumer, kUnshifted
            );
        },
        a, b, c
    );
}
