// Grouped GEMM (MoE): C[rows of a group, N] = A[the same rows, K] B[group, K, N], accumulated in
// fp32. Groups have any number of rows and follow one another in A and C. Nothing is padded: a
// tile loads and multiplies rows beyond its group, since a row of the output depends on its own row
// of A alone, and the map of C drops them.
//
//   ATile           rows of A: 64 deep, 128-byte swizzle, K contiguous
//   BTile           (1, ...) one of the matrices: the same depth and swizzle; K or N contiguous
//   CTile           RaggedTensorMap of C; its tile as in gemm.cu
//   CONSUMERS, ROWS, BLOCK_N, STAGES, CLUSTER, GROUP_M, PING_PONG, A_IS_K_MAJOR, B_IS_K_MAJOR
//                   as in gemm.cu
//   C_IS_N_MAJOR    else swap AB (as in TensorRT-LLM), for groups of few rows: ATile is one of the
//                   matrices, BTile are rows, and groups lie along N
//
// Grid, threads and edges as in gemm.cu. All tiles of a cluster lie in one group, along M; where a
// group has an odd number of rows of tiles, the tiles of its last row lie along N.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "mainloop.cuh"

using namespace tmaasync;

using Operands = OperandPair<
    WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>,
    WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>>;

extern "C" __device__ const int grouped_gemm_shared_bytes = sizeof(SharedMemory);

constexpr bool kSwapsAB = !C_IS_N_MAJOR;
static_assert(CLUSTER <= 2, "a cluster takes two tiles of the last row");
static_assert(kSwapsAB ? B_IS_K_MAJOR : A_IS_K_MAJOR, "rows of A are rows in memory");

// The groups: group g has the rows from ends[g - 1], or 0, to ends[g].
struct Groups {
    const i32* ends;
    i32 count;
    i32 total_rows;

    // The rows of a group, which start where the group before ends. An end before that start or
    // beyond the arrays is clamped.
    __device__ RaggedSequence after(i32 start, i32 group) const {
        check_range("offsets[group]", ends[group], start, total_rows);
        return {start, min(max(ends[group], start), total_rows) - start};
    }
};

// A CTA's tile of a group.
struct GroupTile {
    int m;
    int n;
    int group;
    RaggedSequence rows;
    bool shares_b;
};

// The tile scheduler of a grouped GEMM: a cluster's tiles group by group, in each in rasterisation
// order. A row of tiles without a partner is taken in pairs along N, which share nothing, so that
// no CTA idles.
struct GroupedScheduler {
    Groups groups;
    int columns;
    int k_blocks;
    int index;  // of the cluster within the group
    int group = 0;
    RaggedSequence rows;

    __device__ GroupedScheduler(const Groups& groups, int columns, int k)
        : groups(groups),
          columns(columns),
          k_blocks(ceil_div(k, kBlockK)),
          index(blockIdx.x / CLUSTER),
          rows(groups.after(0, 0)) {
        find_group();
    }

    __device__ int m_tiles() const { return ceil_div(kSwapsAB ? columns : rows.length, kBlockM); }
    __device__ int n_tiles() const { return ceil_div(kSwapsAB ? rows.length : columns, BLOCK_N); }

    // How many clusters have their tiles along M, and along N.
    __device__ int clusters_along_m() const { return m_tiles() / CLUSTER * n_tiles(); }
    __device__ int clusters_along_n() const {
        return m_tiles() % CLUSTER * ceil_div(n_tiles(), CLUSTER);
    }

    __device__ bool done() const { return group == groups.count; }

    __device__ void step() {
        index += gridDim.x / CLUSTER;
        find_group();
    }

    // Advances to the group in which the cluster's next tile lies.
    __device__ void find_group() {
        while (index >= clusters_along_m() + clusters_along_n()) {
            index -= clusters_along_m() + clusters_along_n();
            if (++group == groups.count) return;
            rows = groups.after(rows.end(), group);
        }
    }

    __device__ GroupTile tile() const {
        if (CLUSTER > 1 && index >= clusters_along_m()) {
            const int n_tile = (index - clusters_along_m()) * CLUSTER + block_rank_in_cluster();
            return {(m_tiles() - 1) * kBlockM, n_tile * BLOCK_N, group, rows, false};
        }
        const RasterizedTile tile(index, m_tiles() / CLUSTER, n_tiles());
        return {tile.m(), tile.n(), group, rows, true};
    }
};

// Where an operand's tile starts: `first` counts along M or N, in rows of A from the group's first.
template <int kRank, bool kIsKMajor>
__device__ Coordinates<kRank> operand_at(const GroupTile& tile, int first, int k) {
    if (kRank == 2) first += tile.rows.start;
    return in_batch<kRank>(kIsKMajor ? k : first, kIsKMajor ? first : k, tile.group);
}

__device__ void load_tiles(
    SharedMemory& shared, const ATile& a, const BTile& b, GroupedScheduler scheduler
) {
    auto producer = shared.ring.producer();
    for (; !scheduler.done(); scheduler.step()) {
        const auto tile = scheduler.tile();
        for (const auto stage : producer.produce(scheduler.k_blocks)) {
            const int k = stage.iteration() * kBlockK;
            const auto a_at = operand_at<ATile::kRank, A_IS_K_MAJOR>(tile, tile.m, k);
            const auto b_at = operand_at<BTile::kRank, B_IS_K_MAJOR>(tile, tile.n, k);
            a.async_copy(stage->a, stage.full(), a_at);
            if (tile.shares_b) {
                load_operand<kClusterM>(stage, stage->b, b, b_at);
            } else {
                b.async_copy(stage->b, stage.full(), b_at);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) grouped_gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const i32* ends,
    int count,
    int total_rows,
    int n,
    int k
) {
    const Groups groups{ends, count, total_rows};
    run_warp_specialized(
        [&](SharedMemory& shared) { load_tiles(shared, a, b, GroupedScheduler(groups, n, k)); },
        [&](SharedMemory& shared, int consumer) {
            // A grid before this one may have written the ends.
            wait_for_previous_grids();
            auto stages = shared.ring.consumer<Proxy::kAsync>();
            const GroupedScheduler scheduler(groups, n, k);
            multiply_tiles<Operands>(shared, stages, c, scheduler, consumer);
        },
        a, b, c
    );
}
