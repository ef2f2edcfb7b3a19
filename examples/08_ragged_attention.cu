// New here: ragged maps. Sequences of different lengths lie one after the other, nothing is padded,
// and TMA stops at each sequence's end: loads bring zeros from there on, stores write nothing.
//
// softmax(Q K^T * scale) V, within each sequence and head. A block takes 64 queries and walks over
// the keys, 64 at a time, with a running maximum and a running sum for each query.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

constexpr int kRows = Rows::kRows;  // queries, and keys, of a tile
constexpr int kHeadDim = Rows::side(2);
constexpr float kUnseen = -1e30f;  // the score of a key behind the end
static_assert(kRows == 64, "a warpgroup multiplies 64 rows at once");

// Q K^T sums over the head dimension, which is contiguous in both. P V sums over the keys: V's head
// dimension is contiguous, and P, the weights, stays in registers.
using OperandQ = WgmmaBuffer<float16, Rows::kSwizzle, Major::kK, kRows, kHeadDim>;
using OperandK = OperandQ;
using OperandV = WgmmaBuffer<float16, Rows::kSwizzle, Major::kMN, kRows, kHeadDim>;
using Output = OperandQ;

// What a thread holds of 64 queries: parts of two rows, which it shares with three neighbours.
using Scores = float[1][1][kRows / 2];
using Weights = u32[1][kRows / 16][4];
using Sums = float[1][1][kHeadDim / 2];

struct SharedMemory {
    Rows::Shared q, k, v, o;
    SharedMemBarrier q_full, kv_full;
};
extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

// Which of the thread's two rows its i-th score or sum belongs to.
__device__ constexpr int row_of(int i) {
    return i / 2 % 2;
}

__device__ float max_of_row(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

__device__ float sum_of_row(float value) {
    value += __shfl_xor_sync(0xffffffff, value, 1);
    return value + __shfl_xor_sync(0xffffffff, value, 2);
}

// Keys behind the end were loaded as zeros: their score would be 0, and their weight would count.
__device__ void hide_keys(float (&scores)[kRows / 2], int keys) {
    for (int i = 0; i < kRows / 2; ++i) {
        if (accumulator_column(threadIdx.x, i) >= keys) scores[i] = kUnseen;
    }
}

struct Softmax {
    float scale_log2;  // 2^(x log2(e)) is e^x, and the hardware computes powers of two
    float max[2] = {kUnseen, kUnseen};
    float sum[2] = {0, 0};  // of this thread's columns

    // Makes the scores weights, relative to the greatest so far. Where that grew, sums shrink.
    __device__ void weigh(float (&scores)[kRows / 2], float (&sums)[kHeadDim / 2]) {
        float most[2] = {max[0], max[1]}, shrink[2];
        for (int i = 0; i < kRows / 2; ++i) most[row_of(i)] = fmaxf(most[row_of(i)], scores[i]);
        for (int row = 0; row < 2; ++row) {
            most[row] = max_of_row(most[row]);
            shrink[row] = exp2f((max[row] - most[row]) * scale_log2);
            max[row] = most[row];
            sum[row] *= shrink[row];
        }
        for (int i = 0; i < kRows / 2; ++i) {
            scores[i] = exp2f((scores[i] - max[row_of(i)]) * scale_log2);
            sum[row_of(i)] += scores[i];
        }
        for (int i = 0; i < kHeadDim / 2; ++i) sums[i] *= shrink[row_of(i)];
    }

    __device__ void divide(float (&sums)[kHeadDim / 2]) const {
        const float total[2] = {sum_of_row(sum[0]), sum_of_row(sum[1])};
        for (int i = 0; i < kHeadDim / 2; ++i) sums[i] /= total[row_of(i)];
    }
};

__device__ void open_barriers(SharedMemory& shared) {
    shared.q_full.init(1);
    shared.kv_full.init(1);
    fence_barrier_init();
}

__device__ void load_queries(
    SharedMemory& shared, const Rows& q, RaggedSequence sequence, int head, int row
) {
    shared.q_full.expect_bytes(Rows::kBytes);
    q.async_copy(shared.q, shared.q_full, sequence, {0, head, row});
}

__device__ void load_keys(
    SharedMemory& shared, const Rows& k, const Rows& v, RaggedSequence sequence, int head, int row
) {
    shared.kv_full.expect_bytes(2 * Rows::kBytes);
    k.async_copy(shared.k, shared.kv_full, sequence, {0, head, row});
    v.async_copy(shared.v, shared.kv_full, sequence, {0, head, row});
}

// Adds what one tile of keys and values contributes.
__device__ void attend(SharedMemory& shared, Softmax& softmax, Sums& sums, int keys) {
    Scores scores;
    wgmma<OperandQ, OperandK>(scores, shared.q, shared.k, false);
    hide_keys(scores[0][0], keys);
    softmax.weigh(scores[0][0], sums[0][0]);
    Weights weights;
    accumulators_to_a<float16>(weights[0], scores[0][0]);
    wgmma_rs<OperandV>(sums, weights, shared.v, true);
}

__device__ void store_output(
    SharedMemory& shared,
    const Rows& o,
    const Sums& sums,
    RaggedSequence sequence,
    int head,
    int row
) {
    store_accumulators<Output, kHeadDim>(shared.o, sums[0][0]);
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x != 0) return;
    o.async_store(shared.o, sequence, {0, head, row});  // not a row of the next sequence is touched
    commit_group();
    wait_group_read<0>();
}

// Block (x, y, z): the x-th 64 queries of head y of sequence z. Rows count from its first.
extern "C" __global__ void __launch_bounds__(128) attention(
    const __grid_constant__ Rows q,
    const __grid_constant__ Rows k,
    const __grid_constant__ Rows v,
    const __grid_constant__ Rows o,
    const int* cu_seqlens,
    float scale_log2
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const auto sequence = RaggedSequence::of(cu_seqlens, blockIdx.z);
    const int head = blockIdx.y, query = blockIdx.x * kRows;
    if (query >= sequence.length) return;  // there are blocks for the longest one
    if (threadIdx.x == 0) {
        open_barriers(shared);
        load_queries(shared, q, sequence, head, query);
    }
    __syncthreads();
    shared.q_full.wait(0);

    Softmax softmax{scale_log2};
    Sums sums = {};
    u32 phase = 0;
    for (int key = 0; key < sequence.length; key += kRows, phase ^= 1) {
        if (threadIdx.x == 0) load_keys(shared, k, v, sequence, head, key);
        shared.kv_full.wait(phase);
        attend(shared, softmax, sums, sequence.length - key);
        __syncthreads();  // all warps have read the tiles: the next may land there
    }
    softmax.divide(sums[0][0]);
    store_output(shared, o, sums, sequence, head, query);
}
