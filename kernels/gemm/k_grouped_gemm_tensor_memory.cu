// K-grouped GEMM on Blackwell's tensor memory: C[group] = A[group]^T B[group], with the groups and
// edges of k_grouped_gemm.cu. Compiled and emulated, not run on a chip.
//
//   AMap, BMap      RaggedTensorMap of A, 64 rows of 128 columns, and of B, 64 rows of a CTA's
//                   columns, 128-byte swizzle
//   ATile, BTile    AMap::Tile and BMap::Tile
//   CTile           (1, ...) one of the outputs, as in gemm_tensor_memory.cu
//   STAGES, CTAS, GROUP_M    as in gemm_tensor_memory.cu. A_IS_K_MAJOR, B_IS_K_MAJOR and
//                   STORES_PARTIALS are false
//
// Grid and threads are as in gemm_tensor_memory.cu. `broken_group` is as in grouped_gemm.cu.
#include "groups.cuh"
#include "unscaled_tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

struct KGroupTile : OutputTile {
    RaggedSequence rows;
};

// The scheduler of all outputs, with the rows of their groups.
class KGroupScheduler : public Schedule<KGroupScheduler> {
public:
    __device__ KGroupScheduler(const MatrixTiles& outputs, const RowGroups& groups)
        : tiles_(outputs.tiles), groups_(groups) {
        find_rows();
    }

    __device__ bool done() const { return tiles_.done(); }
    __device__ void step() {
        tiles_.step();
        find_rows();
    }
    __device__ KGroupTile tile() const { return {tiles_.tile(), rows_}; }

private:
    __device__ void find_rows() {
        if (!done()) rows_ = groups_.of(tiles_.tile().batch);
    }

    StaticScheduler<decltype(MatrixTiles::tiles)> tiles_;
    GroupRows groups_;
    RaggedSequence rows_{};
};

struct KGroupTiles {
    MatrixTiles outputs;
    RowGroups groups;
    i32* broken_group;

    __device__ auto schedule() const { return KGroupScheduler(outputs, groups); }
    // An empty group has a block of zeros.
    __device__ KRange range(const KGroupTile& tile) const {
        return KRange(max(count_tiles(tile.rows.length, kK), 1));
    }
    __device__ void help(int helper) const { report_groups(groups, broken_group, helper); }
};

extern "C" __device__ const int k_grouped_gemm_tensor_memory_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) k_grouped_gemm_tensor_memory(
    const __grid_constant__ AMap a,
    const __grid_constant__ BMap b,
    const __grid_constant__ CTile c,
    const i32* ends,
    int count,
    int total_rows,
    int m,
    int n,
    i32* broken_group
) {
    const RowGroups groups{ends, count, total_rows};
    multiply_in_tensor_memory(
        dynamic_shared<SharedMemory>(),
        KGroupTiles{MatrixTiles(m, n, 0, count), groups, broken_group},
        [&](const auto& stage, const KGroupTile& tile, int block) {
            const int k = block * kK, column = first_column_of_b(tile);
            a.async_copy<CTAS>(stage->a, stage.full(), tile.rows, {tile.m, k});
            b.async_copy<CTAS>(stage->b, stage.full(), tile.rows, {column, k});
        },
        [&](auto& output, auto& accumulators, const KGroupTile& tile, int) {
            output.store(accumulators, c, tile);
        },
        a, b, c
    );
}
