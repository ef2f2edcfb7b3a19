// Runs before attention_backward.cu: for every tile of queries it computes the log-sum-exp of each
// row as an exponent of 2, and delta, the row sums of dO * O (FlashAttention-2, section 3.1.2).
// Rows that are not queries, or have no key, get infinity, so that their probabilities are zero.
// Rows whose log-sum-exp exceeds kLargestLse get NaN. It also clears the turns in the workspace,
// and writes the number, counted from 1, of a sequence that exceeds the arrays to
// `broken_sequence`. `tile_counter` gets the 0 of the dynamic scheduler, then the number of
// sequences before the first that runs backwards: later ones may overlap others, so
// attention_backward.cu skips them.
//
// QTile, BLOCK_M, HEAD_DIM and IS_PACKED are as in attention_backward.cu.
//
// Grid: one CTA of 128 threads per tile of queries in the workspace.
#include "abi.cuh"
#include "config.cuh"
#include "query_tiles.cuh"
#include "rows.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::attention_backward;

constexpr int kThreads = 128;

// The recomputed probabilities have a relative error of about 1e-7 times the log-sum-exp, because
// fp32 rounds it and the scaled scores: up to here less than 1 %.
constexpr float kLargestLse = 65536;

struct SharedMemory {
    typename QTile::Shared out;
    typename QTile::Shared dout;
    SharedMemBarrier full;
    i32 in_order;
};

extern "C" __device__ const int attention_backward_rows_shared_bytes = sizeof(SharedMemory);

using Rows = QueriesOperand<Major::kK>;

// The row sum of dO * O, computed by one thread: the swizzle puts adjacent rows in other banks.
__device__ __forceinline__ float row_delta(const SharedMemory& shared, int row) {
    constexpr int kUnit = 16 / sizeof(Element);
    float partial[2] = {0, 0};
#pragma unroll 4
    for (int column = 0; column < HEAD_DIM; column += kUnit) {
        const u32 at = Rows::offset_bytes(row, column);
        const auto out = *reinterpret_cast<const uint4*>(shared.out.bytes + at);
        const auto dout = *reinterpret_cast<const uint4*>(shared.dout.bytes + at);
        const u32 a[4] = {out.x, out.y, out.z, out.w}, b[4] = {dout.x, dout.y, dout.z, dout.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 first = unpack_pair<Element>(a[i]), second = unpack_pair<Element>(b[i]);
            partial[0] = fmaf(first.x, second.x, partial[0]);
            partial[1] = fmaf(first.y, second.y, partial[1]);
        }
    }
    return partial[0] + partial[1];
}

// The log-sum-exp of a row of the tile, as an exponent of 2.
__device__ __forceinline__ float row_lse(
    const BackwardProblem& problem, const QueryTiles::Tile& tile, const float* lse, int row
) {
    constexpr float kLog2E = 1.4426950408889634f;
    const float kInfinity = -masked_score(), kNaN = __uint_as_float(0x7fffffff);
    if (tile.position + row >= tile.queries.length) return kInfinity;
    const i64 line = static_cast<i64>(IS_PACKED ? 0 : tile.entry) * problem.heads + tile.head;
    const float own = lse[line * problem.lse_rows + tile.queries.start + tile.position + row];
    if (own == masked_score()) return kInfinity;
    return fabsf(own) <= kLargestLse ? own * kLog2E : kNaN;
}

// Report a sequence that exceeds the arrays. Return the number of sequences before the first that
// runs backwards. Called by all threads of a CTA; `in_order` is the number of sequences.
__device__ __forceinline__ i32
check_sequences(const Sequences& sequences, i32* broken_sequence, i32& in_order) {
    const auto& problem = sequences.problem;
    const i32 *of_queries = sequences.cu_seqlens_q, *of_keys = sequences.cu_seqlens_k;
    for (i32 entry = threadIdx.x; entry < problem.batch; entry += kThreads) {
        const auto queries = RaggedSequence::of(of_queries, entry);
        const auto keys = RaggedSequence::of(of_keys, entry);
        const bool are_within = queries.is_within(problem.queries, problem.queries) &&
                                keys.is_within(problem.keys, problem.keys);
        if (are_within) continue;
        atomicExch(broken_sequence, entry + 1);
        const bool run_backwards =
            of_queries[entry + 1] < of_queries[entry] || of_keys[entry + 1] < of_keys[entry];
        if (run_backwards) atomicMin(&in_order, entry);
    }
    __syncthreads();
    return in_order;
}

extern "C" __global__ void __launch_bounds__(kThreads) attention_backward_rows(
    const __grid_constant__ QTile out,
    const __grid_constant__ QTile dout,
    const float* lse,
    RowStatistics* statistics,
    u32* turns,
    u32* tile_counter,
    const i32* cu_seqlens_q,
    const i32* cu_seqlens_k,
    i32* broken_sequence,
    const __grid_constant__ BackwardProblem problem
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const Sequences sequences{problem, cu_seqlens_q, cu_seqlens_k, problem.batch};
    const i32 number = blockIdx.x;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        shared.in_order = problem.batch;
        fence_barrier_init();
    }
    __syncthreads();
    launch_dependent_grids();
    wait_for_previous_grids();
    if (number == 0) {
        i32 count = problem.batch;
        if constexpr (IS_PACKED) {
            count = check_sequences(sequences, broken_sequence, shared.in_order);
        }
        if (threadIdx.x == 0) {
            tile_counter[0] = 0;
            tile_counter[1] = count;
        }
    }
    const int row = threadIdx.x;
    const int at = RowValues::index(row);
    if (row < kConsumers) turns[number * kConsumers + row] = 0;
    const auto tile = QueryTiles{sequences}.at(number);
    if (!tile.exists()) {
        // Cumulative lengths that run backwards may hide a tile whose statistics are still read.
        if (row < BLOCK_M) statistics[number].lse.values[at] = -masked_score();
        if (row < BLOCK_M) statistics[number].delta.values[at] = 0;
        return;
    }

    if (threadIdx.x == 0) {
        shared.full.expect_bytes(2 * QTile::kBytes);
        load_rows(out, shared.out, shared.full, tile.rows(), tile.position);
        load_rows(dout, shared.dout, shared.full, tile.rows(), tile.position);
    }
    if (row < BLOCK_M) statistics[number].lse.values[at] = row_lse(problem, tile, lse, row);
    shared.full.wait(0);
    if (row < BLOCK_M) statistics[number].delta.values[at] = row_delta(shared, row);
}
