// Underneath step 8: FlashAttention's forward pass, softmax(Q K^T * scale) V per sequence
// and head, with barriers and the online softmax by hand. A block takes 64 queries and
// loops over the keys, 64 at a time. Loads and stores go through ragged tensor maps, which
// stop at the end of each sequence.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

constexpr int kRows = Rows::kRows;  // queries of a tile, and keys of a tile
constexpr int kHeadDim = Rows::side(2);
constexpr float kMasked = -1e30f;  // the score of a key beyond the end
static_assert(kRows == 64, "a warpgroup multiplies 64 rows at once");

// S = Q K^T contracts the head dimension, which is contiguous in both. O = P V contracts
// the keys: the head dimension of V is contiguous, and P, the probabilities, stays in
// registers.
using OperandQ = WgmmaBuffer<float16, Rows::kSwizzle, Major::kK, kRows, kHeadDim>;
using OperandK = OperandQ;
using OperandV = WgmmaBuffer<float16, Rows::kSwizzle, Major::kMN, kRows, kHeadDim>;
using Output = OperandQ;

// The registers of a thread: parts of two rows, which it shares with three neighbouring
// lanes.
using Scores = float[1][1][kRows / 2];
using Probabilities = u32[1][kRows / 16][4];
using Accumulators = float[1][1][kHeadDim / 2];

struct SharedMemory {
    Rows::Shared q, k, v, o;
    SharedMemBarrier q_full, kv_full;
};
extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

// Which of the thread's two rows its i-th score or accumulator belongs to.
__device__ constexpr int row_of(int i) {
    return i / 2 % 2;
}

// Both reduce a row over the four lanes that share it.
__device__ float reduce_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

__device__ float reduce_sum(float value) {
    value += __shfl_xor_sync(0xffffffff, value, 1);
    return value + __shfl_xor_sync(0xffffffff, value, 2);
}

// Keys beyond the end were loaded as zeros. Their scores would be 0, and would count in
// the softmax.
__device__ void mask_keys(float (&scores)[kRows / 2], int keys) {
    for (int i = 0; i < kRows / 2; ++i) {
        if (accumulator_column(threadIdx.x, i) >= keys) scores[i] = kMasked;
    }
}

// Online softmax (Milakov and Gimelshein, 2018; FlashAttention).
struct Softmax {
    float scale_log2;  // the scale times log2(e): the hardware computes powers of two
    float row_max[2] = {kMasked, kMasked};
    float row_sum[2] = {0, 0};  // over this thread's columns

    // Turn scores into probabilities relative to the new row maximum, and rescale O to it.
    __device__ void update(float (&scores)[kRows / 2], float (&o)[kHeadDim / 2]) {
        float new_max[2] = {row_max[0], row_max[1]}, rescale[2];
        for (int i = 0; i < kRows / 2; ++i) {
            new_max[row_of(i)] = fmaxf(new_max[row_of(i)], scores[i]);
        }
        for (int row = 0; row < 2; ++row) {
            new_max[row] = reduce_max(new_max[row]);
            rescale[row] = exp2f((row_max[row] - new_max[row]) * scale_log2);
            row_max[row] = new_max[row];
            row_sum[row] *= rescale[row];
        }
        for (int i = 0; i < kRows / 2; ++i) {
            scores[i] = exp2f((scores[i] - row_max[row_of(i)]) * scale_log2);
            row_sum[row_of(i)] += scores[i];
        }
        for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= rescale[row_of(i)];
    }

    __device__ void normalise(float (&o)[kHeadDim / 2]) const {
        const float total[2] = {reduce_sum(row_sum[0]), reduce_sum(row_sum[1])};
        for (int i = 0; i < kHeadDim / 2; ++i) o[i] /= total[row_of(i)];
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

// One tile of keys and values.
__device__ void attend(SharedMemory& shared, Softmax& softmax, Accumulators& o, int keys) {
    Scores scores;
    wgmma<OperandQ, OperandK>(scores, shared.q, shared.k, false);
    mask_keys(scores[0][0], keys);
    softmax.update(scores[0][0], o[0][0]);
    Probabilities p;
    accumulators_to_a<float16>(p[0], scores[0][0]);
    wgmma_rs<OperandV>(o, p, shared.v, true);
}

__device__ void store_output(
    SharedMemory& shared,
    const Rows& o,
    const Accumulators& accumulators,
    RaggedSequence sequence,
    int head,
    int row
) {
    store_accumulators<Output, kHeadDim>(shared.o, accumulators[0][0]);
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x != 0) return;
    o.async_store(shared.o, sequence, {0, head, row});  // clipped at the end of the sequence
    commit_group();
    wait_group_read<0>();
}

// Block (x, y, z): query tile x of head y of sequence z. Rows count from the start of the
// sequence.
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
    if (query >= sequence.length) return;  // the grid is sized for the longest sequence
    if (threadIdx.x == 0) {
        open_barriers(shared);
        load_queries(shared, q, sequence, head, query);
    }
    __syncthreads();
    shared.q_full.wait(0);

    Softmax softmax{scale_log2};
    Accumulators accumulators = {};
    u32 phase = 0;
    for (int key = 0; key < sequence.length; key += kRows, phase ^= 1) {
        if (threadIdx.x == 0) load_keys(shared, k, v, sequence, head, key);
        shared.kv_full.wait(phase);
        attend(shared, softmax, accumulators, sequence.length - key);
        __syncthreads();  // all warps have read K and V: the next tiles may land there
    }
    softmax.normalise(accumulators[0][0]);
    store_output(shared, o, accumulators, sequence, head, query);
}
