// C[rows of a group, N] = A[the same rows, K] B[group, K, N] in fp32 accumulators, for groups of
// any number of rows that lie one after the other in A and C. Nothing is padded: a tile's rows
// beyond its group are loaded and multiplied, since every row of a product depends on its own row
// of A alone, and are dropped by the map of C.
//
//   ATile           rows of A: 64 deep, 128-byte swizzle, K contiguous
//   BTile           (1, ...) one of the matrices: the same depth and swizzle; K or N contiguous
//   CTile           RaggedTensorMap of C; its tile as in gemm.cu
//   CONSUMERS, ROWS, BLOCK_N, STAGES, CLUSTER, GROUP_M, PING_PONG, A_IS_K_MAJOR, B_IS_K_MAJOR
//                   as in gemm.cu
//   C_IS_N_MAJOR    else the product of the transposes is taken, for groups of few rows: ATile is
//                   one of the matrices, BTile are rows, and groups lie along N
//
// Grid, threads and edges as in gemm.cu. A cluster's tiles lie in one group: one below the other,
// or, where a group has an odd number of rows of tiles, side by side in the last.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "mainloop.cuh"

using namespace tmaasync;

using Operands = OperandPair<
    WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>,
    WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>>;

extern "C" __device__ const int grouped_gemm_shared_bytes = sizeof(SharedMemory);

constexpr bool kGroupsLieAlongM = C_IS_N_MAJOR;
static_assert(CLUSTER <= 2, "of the last row of tiles a cluster takes two");
static_assert(kGroupsLieAlongM ? A_IS_K_MAJOR : B_IS_K_MAJOR, "rows of A are rows in memory");

// What the groups are: group g has the rows from ends[g - 1], or 0, up to ends[g].
struct Groups {
    const i32* ends;
    i32 count;
    i32 total_rows;

    // The rows of a group, behind those of the one before. An end that lies before its group, or
    // behind the arrays, is moved there.
    __device__ RaggedSequence after(i32 start, i32 group) const {
        check_range("offsets[group]", ends[group], start, total_rows);
        return {start, min(max(ends[group], start), total_rows) - start};
    }
};

// The output tiles of one cluster: those of all groups make up one sequence, group by group, and in
// each by TilePlace. A row of tiles that has no partner is walked in pairs of its own, which share
// nothing: no CTA is left without work.
struct GroupWalk {
    Groups groups;
    int columns;
    int k_blocks;
    int index;  // of the cluster within the group
    int group = 0;
    RaggedSequence rows;

    __device__ GroupWalk(const Groups& groups, int columns, int k)
        : groups(groups),
          columns(columns),
          k_blocks(ceil_div(k, kBlockK)),
          index(blockIdx.x / CLUSTER),
          rows(groups.after(0, 0)) {
        find_group();
    }

    __device__ int m_tiles() const {
        return ceil_div(kGroupsLieAlongM ? rows.length : columns, kBlockM);
    }
    __device__ int n_tiles() const {
        return ceil_div(kGroupsLieAlongM ? columns : rows.length, BLOCK_N);
    }

    // Of clusters whose tiles lie one below the other, and of the others.
    __device__ int tall() const { return m_tiles() / CLUSTER * n_tiles(); }
    __device__ int wide() const { return m_tiles() % CLUSTER * ceil_div(n_tiles(), CLUSTER); }

    __device__ bool done() const { return group == groups.count; }

    __device__ void step() {
        index += gridDim.x / CLUSTER;
        find_group();
    }

    // From the group in which the cluster was to the one in which its next tile lies.
    __device__ void find_group() {
        while (index >= tall() + wide()) {
            index -= tall() + wide();
            if (++group == groups.count) return;
            rows = groups.after(rows.end(), group);
        }
    }

    struct Start {
        int m;
        int n;
        int group;
        RaggedSequence rows;
        bool shares_b;

        // As TileWalk::Start; the map stops at the group's end.
        __device__ void store(
            const CTile& c, const typename CTile::Shared& chunk, int row, int column
        ) const {
            const int inner = kGroupsLieAlongM ? n + column : m + row;
            const int outer = kGroupsLieAlongM ? m + row : n + column;
            c.async_store(chunk, rows, {inner, outer});
        }
    };

    __device__ Start start() const {
        if (CLUSTER > 1 && index >= tall()) {
            const int n_tile = (index - tall()) * CLUSTER + block_rank_in_cluster();
            return {(m_tiles() - 1) * kBlockM, n_tile * BLOCK_N, group, rows, false};
        }
        const TilePlace place(index, m_tiles() / CLUSTER, n_tiles());
        return {place.m(), place.n(), group, rows, true};
    }
};

// Where a tile of rows starts, or of one of the matrices.
template <int kRank, bool kIsKMajor>
__device__ Coordinates<kRank> operand_start(const GroupWalk::Start& start, int place, int k) {
    if (kRank == 2) place += start.rows.start;
    return in_batch<kRank>(kIsKMajor ? k : place, kIsKMajor ? place : k, start.group);
}

__device__ void load_tiles(SharedMemory& shared, const ATile& a, const BTile& b, GroupWalk walk) {
    auto place = Ring::for_producer();
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        for (int block = 0; block < walk.k_blocks; ++block, place.step()) {
            const int k = block * kBlockK;
            auto& stage = shared.stages[place.index];
            auto& full = shared.full[place.index];
            // Every consumer of this stage, in every CTA of the cluster, has read it.
            shared.empty[place.index].wait(place.phase);
            full.expect_bytes(kStageBytes);
            a.async_copy(
                stage.a, full, operand_start<ATile::kRank, A_IS_K_MAJOR>(start, start.m, k)
            );
            const auto b_at = operand_start<BTile::kRank, B_IS_K_MAJOR>(start, start.n, k);
            if (start.shares_b) {
                load_operand<kCtasDown>(stage.b, full, b, b_at);
            } else {
                b.async_copy(stage.b, full, b_at);
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
    run_roles(
        [&](SharedMemory& shared) { load_tiles(shared, a, b, GroupWalk(groups, n, k)); },
        [&](SharedMemory& shared, int consumer) {
            // A grid before this one may have made the ends.
            wait_for_previous_grids();
            multiply_tiles<Operands>(shared, c, GroupWalk(groups, n, k), consumer, Untouched{});
        },
        a, b, c
    );
}
