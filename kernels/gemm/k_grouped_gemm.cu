// K-grouped GEMM (the 2d-2d form of PyTorch's _grouped_mm): C[group] = A[group]^T B[group], where a
// group is a range of rows of A and B, accumulated in fp32. It computes the weight gradient of a
// grouped GEMM. Groups have any number of rows and are packed; C of an empty group is zero. The
// maps of A and B stop at the end of each group, so that rows of the next group are loaded as zeros
// and add nothing.
//
//   ATile           RaggedTensorMap of A, 64 rows of kBlockM columns, 128-byte swizzle
//   BTile           RaggedTensorMap of B, 64 rows of BLOCK_N columns, 128-byte swizzle
//   CTile           (1, ...) one of the outputs, as in gemm.cu; N contiguous
//   CONSUMERS, ROWS, BLOCK_N, STAGES, GROUP_M
//                   as in gemm.cu; CLUSTER and SPLIT_K are 1, and SIDE_BY_SIDE, STORES_PARTIALS
//                   and PING_PONG are false
//
// Grid, threads and edges are as in gemm.cu. `broken_group` is as in grouped_gemm.cu.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "config.cuh"
#include "groups.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

static_assert(Cluster::kCtas == 1 && !PING_PONG && C_IS_N_MAJOR, "see above");
static_assert(!A_IS_K_MAJOR && !B_IS_K_MAJOR, "rows of A and B are rows in memory");

using Loop = TileLoop<
    WgmmaOperand<typename ATile::Tile, Major::kMN>,
    WgmmaOperand<typename BTile::Tile, Major::kMN>>;

extern "C" __device__ const int k_grouped_gemm_shared_bytes = sizeof(SharedMemory);

__device__ void load_tiles(
    SharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const TileScheduler& schedule,
    GroupRows groups
) {
    auto producer = shared.ring.producer();
    for (const auto tile : schedule) {
        const RaggedSequence rows = groups.of(tile.batch);
        for (const auto stage : producer.produce(count_tiles(rows.length, kBlockK))) {
            const int k = stage.iteration() * kBlockK;
            a.async_copy(stage->a, stage.full(), rows, {tile.m, k});
            b.async_copy(stage->b, stage.full(), rows, {tile.n, k});
        }
    }
}

__device__ void multiply_tiles(
    SharedMemory& shared,
    const CTile& c,
    const TileScheduler& schedule,
    GroupRows groups,
    int consumer
) {
    auto stages = shared.ring.consumer<Proxy::kAsync>();
    const int row = consumer_row(consumer);
    TileEpilogue epilogue(shared.epilogue[consumer], consumer, row);
    for (const auto tile : schedule) {
        const int k_blocks = count_tiles(groups.of(tile.batch).length, kBlockK);
        Accumulators accumulators = {};
        if (k_blocks > 0) Loop::multiply(stages, accumulators, k_blocks, row);
        epilogue.store(accumulators, c, tile);
    }
    epilogue.drain();
}

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) k_grouped_gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const i32* ends,
    int count,
    int total_rows,
    int m,
    int n,
    i32* broken_group
) {
    const RowGroups groups{ends, count, total_rows};
    const TileScheduler schedule({m, n, count});
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run_with_helpers(
        shared, [&] { load_tiles(shared, a, b, schedule, GroupRows(groups)); },
        [&](int helper) { report_groups(groups, broken_group, helper); },
        [&](int consumer) {
            // An earlier grid may have written the ends.
            wait_for_previous_grids();
            multiply_tiles(shared, c, schedule, GroupRows(groups), consumer);
        },
        a, b, c
    );
}
