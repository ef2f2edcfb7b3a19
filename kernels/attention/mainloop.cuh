#pragma once

// The main loop of a consumer: scores S = Q K^T, probabilities P = softmax(S), output O += P V.
// After FlashAttention-3 (Shah et al. 2024): consumers alternate at the tensor cores (ping-pong),
// and within a consumer the MMAs of a block overlap the softmax of its neighbour (intra-warpgroup
// pipelining).
#include <tmaasync/roles.cuh>
#include <tmaasync/wgmma.cuh>

#include "pipeline.cuh"
#include "softmax.cuh"

namespace tmaasync {

using OperandQ = WgmmaBuffer<Element, QTile::kSwizzle, Major::kK, kConsumerRows, HEAD_DIM>;
using OperandK = WgmmaBuffer<Element, KTile::kSwizzle, Major::kK, BLOCK_N, HEAD_DIM>;

// For FP8, wgmma accepts V only with the keys contiguous.
template <bool kIsTransposed>
struct ValuesOperand {
    using Type = WgmmaBuffer<Element, VTile::kSwizzle, Major::kMN, BLOCK_N, HEAD_DIM>;
};
template <>
struct ValuesOperand<true> {
    using Type = WgmmaBuffer<Element, VTile::kSwizzle, Major::kK, HEAD_DIM, BLOCK_N>;
};
using OperandV = typename ValuesOperand<kIsFp8>::Type;

using Softmax = OnlineSoftmax<kIsFp8 ? 2 : 8, kIsFp8 ? 6 : 0>;

// A thread's registers for its consumer's rows: S, P as an A operand, and O.
using Scores = float[BLOCK_N / 2];
using Probabilities = u32[BLOCK_N * sizeof(Element) / 32][4];
using Accumulators = float[HEAD_DIM / 2];

// Two-level accumulation of FP8 (as in DeepSeek-V3 and SageAttention2). The tensor cores' FP8
// accumulators drop bits below the first 14 or so, always towards zero: 16384 equal probabilities
// would come to three quarters of their sum (measured on an H200). So the tensor cores accumulate
// one block alone, and blocks are added in fp32. There are registers for both while there are no
// scores, for some columns at once: the MMAs of a consumer follow one another.
constexpr bool kAccumulatesInTwoLevels = kIsFp8;
constexpr int kColumnsAtOnce = HEAD_DIM == 192 ? 96 : 64;

// Whether the first S of a tile overlaps the last P V of the tile before.
constexpr bool kTilesOverlap = QUERY_BUFFERS > 1 && !kAccumulatesInTwoLevels;

using Order = MmaOrder<CONSUMERS>;

__device__ __forceinline__ void release_next_consumer(int consumer) {
    Order::release(consumer == CONSUMERS - 1 ? 0 : consumer + 1);
}

// Releases a stage that the warp has read.
__device__ __forceinline__ void release(SharedMemBarrier& empty) {
    if (lane_index() == 0) empty.arrive();
}

// Releases a block of keys or values, to the producer of every CTA that wrote it.
__device__ __forceinline__ void release_block(SharedMemBarrier& empty) {
    if constexpr (CLUSTER == 1) {
        release(empty);
    } else {
        if (lane_index() < CLUSTER) empty.arrive_cluster_relaxed(lane_index());
    }
}

struct Consumer {
    SharedMemory& shared;
    const Problem& problem;
    int index;
    StageState k_state = StageState::for_consumer();
    StageState v_state = StageState::for_consumer();
    TaskState task_state;  // of the task that is taken next

    // Waits for a task, and for its queries.
    __device__ __forceinline__ void take_task() {
        shared.q_full[task_state.buffer()][index].wait(task_state.phase());
        // One lane releases the queries for its warp: no other may still be waiting for them.
        __syncwarp();
        task_state.step();
    }

    // The task that was taken last, or before that.
    __device__ __forceinline__ const Task& task(u32 before = 0) const {
        return shared.tasks[task_state.before(1 + before).index];
    }

    // The scale of a score before softcap's tanh.
    __device__ __forceinline__ float scale() const {
        return problem.scale * task().descale().scores;
    }
    __device__ __forceinline__ Softmax softmax() const {
        const float factor = HAS_SOFTCAP ? 1 : task().descale().scores;
        return {problem.scale_log2 * factor};
    }

    // The blocks of the task that this consumer works on.
    __device__ __forceinline__ KeyBlocks blocks() const {
        return task().is_last ? KeyBlocks{} : task().tile.blocks(problem, index);
    }

    // How many blocks the cluster loads before the blocks of the task.
    __device__ __forceinline__ i32 blocks_to_skip(const KeyBlocks& blocks) const {
        return task().is_last ? 0 : task().tile.blocks(problem).end - blocks.end;
    }

    // Whether the task's first block is the next in the pipeline.
    __device__ __forceinline__ bool is_next_in_pipeline(const KeyBlocks& blocks) const {
        if constexpr (kSkipsBlocks) {
            if (blocks_to_skip(blocks) > 0) return false;
        }
        return blocks.count() > 0;
    }

    // Releases blocks that only the peer CTA needs.
    __device__ __forceinline__ void skip_blocks(i32 count) {
        for (i32 skipped = 0; skipped < count; ++skipped) {
            skip(shared.k_full, shared.k_empty, k_state);
            skip(shared.v_full, shared.v_empty, v_state);
        }
    }

    // Releases the queries once all S of the tile are done, unless the output is staged there.
    __device__ __forceinline__ void release_queries() {
        if constexpr (!O_OVER_Q) release(shared.q_empty[task_state.before(1).buffer()][index]);
    }

    // Issues S = Q K^T as one wgmma group.
    __device__ __forceinline__ void issue_qk(Scores& scores) {
        const u64 q = OperandQ::descriptor(shared.q[task_state.before(1).buffer()][index], 0);
        const u64 k = OperandK::descriptor(shared.k[k_state.index], 0);
        shared.k_full[k_state.index].wait(k_state.phase);
        wgmma_fence_operands(scores);
        wgmma_fence();
        wgmma_tile<OperandQ, OperandK>(scores, q, k, false);
        wgmma_commit_group();
    }

    // Issues O += P V as one wgmma group.
    __device__ __forceinline__ void issue_pv(
        Accumulators& accumulators, Probabilities& probabilities
    ) {
        const u64 v = OperandV::descriptor(shared.v[v_state.index], 0);
        shared.v_full[v_state.index].wait(v_state.phase);
        wgmma_fence_operands(accumulators);
        wgmma_fence_operands(probabilities);
        wgmma_fence();
        wgmma_tile_rs<OperandV>(accumulators, probabilities, v, true);
        wgmma_commit_group();
    }

    // Waits for S, with at most kPending later groups in flight, and releases the keys.
    template <int kPending>
    __device__ __forceinline__ void wait_for_qk(Scores& scores) {
        wgmma_wait_group<kPending>();
        wgmma_fence_operands(scores);
        release_block(shared.k_empty[k_state.index]);
        k_state.step();
    }

    // Waits for O, and releases the values.
    __device__ __forceinline__ void wait_for_pv(
        Accumulators& accumulators, Probabilities& probabilities
    ) {
        wgmma_wait_group<0>();
        wgmma_fence_operands(accumulators);
        wgmma_fence_operands(probabilities);
        release_block(shared.v_empty[v_state.index]);
        v_state.step();
    }

    // O += P V, to its end.
    __device__ __forceinline__ void accumulate_pv(
        Accumulators& accumulators, Probabilities& probabilities
    ) {
        if constexpr (kAccumulatesInTwoLevels) {
            shared.v_full[v_state.index].wait(v_state.phase);
#pragma unroll
            for (int first = 0; first < HEAD_DIM; first += kColumnsAtOnce) {
                accumulate_columns(accumulators, probabilities, first);
            }
            release_block(shared.v_empty[v_state.index]);
            v_state.step();
        } else {
            issue_pv(accumulators, probabilities);
            wait_for_pv(accumulators, probabilities);
        }
    }

private:
    // Adds P V of kColumnsAtOnce columns from `first` on.
    __device__ __forceinline__ void accumulate_columns(
        Accumulators& accumulators, Probabilities& probabilities, int first
    ) {
        float block[kColumnsAtOnce / 2];
        wgmma_fence_operands(block);
        wgmma_fence_operands(probabilities);
        wgmma_fence();
        const u64 v = OperandV::descriptor(shared.v[v_state.index], first);
        wgmma_tile_rs<OperandV>(block, probabilities, v, false);
        finish_wgmma<0>(block);
        wgmma_fence_operands(probabilities);
#pragma unroll
        for (int i = 0; i < kColumnsAtOnce / 2; ++i) accumulators[first / 2 + i] += block[i];
    }

    __device__ __forceinline__ static void skip(
        const SharedMemBarrier (&full)[STAGES], SharedMemBarrier (&empty)[STAGES], StageState& state
    ) {
        full[state.index].wait(state.phase);
        // No other lane of the warp may still be waiting for it.
        __syncwarp();
        release_block(empty[state.index]);
        state.step();
    }
};

// The first of a thread's two rows, as a row of the tile; the other is eight further on.
__device__ __forceinline__ int row_of_thread(int consumer) {
    return consumer * kConsumerRows + accumulator_row(thread_in_warpgroup(), 0);
}

// The columns of a block of keys that the thread's rows see.
__device__ __forceinline__ VisibleColumns
visible_columns(const Problem& problem, const Tile& tile, int consumer, int block) {
    const int first_column = block * BLOCK_N + accumulator_column(thread_in_warpgroup(), 0);
    VisibleColumns visible;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_thread(consumer) + 8 * half;
        const int own = tile.position + row / HEADS_PER_TILE + tile.shift(problem);
        int end = tile.entry.keys.length;
        if constexpr (HAS_RIGHT) end = min(end, own + problem.right + 1);
        visible.end[half] = end - first_column;
        visible.first[half] = own - problem.left - first_column;
    }
    return visible;
}

// P = softmax(S), in place. kMayBeMasked: the block may need a mask.
template <bool kMayBeMasked>
__device__ __forceinline__ void apply_softmax(
    const Consumer& consumer,
    const KeyBlocks& blocks,
    int block,
    Softmax& softmax,
    Scores& scores,
    float (&rescale)[2]
) {
    if constexpr (HAS_SOFTCAP) cap_scores(scores, consumer.scale());
    if constexpr (kMayBeMasked) {
        if (!blocks.is_unmasked(block)) {
            const Tile& tile = consumer.task().tile;
            const auto visible = visible_columns(consumer.problem, tile, consumer.index, block);
            mask_scores<HAS_LEFT>(scores, visible);
        }
    }
    softmax.update<kMayBeMasked>(scores, rescale);
}

__device__ __forceinline__ void scale_rows(Accumulators& accumulators, const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) accumulators[i] *= by[i / 2 % 2];
}

// Computes P of a block and O += P V of the block before. Both MMAs are issued in this consumer's
// turn, and the softmax overlaps P V. With two-level accumulation P V comes first, and the softmax
// overlaps the MMAs of other consumers.
template <bool kMayBeMasked>
__device__ __forceinline__ void overlap_blocks(
    Consumer& consumer,
    const KeyBlocks& blocks,
    int block,
    Softmax& softmax,
    Scores& scores,
    Probabilities& probabilities,
    Accumulators& accumulators,
    float (&rescale)[2]
) {
    Order::wait(consumer.index);
    if constexpr (kAccumulatesInTwoLevels) consumer.accumulate_pv(accumulators, probabilities);
    consumer.issue_qk(scores);
    if constexpr (!kAccumulatesInTwoLevels) consumer.issue_pv(accumulators, probabilities);
    release_next_consumer(consumer.index);
    consumer.wait_for_qk<kAccumulatesInTwoLevels ? 0 : 1>(scores);
    apply_softmax<kMayBeMasked>(consumer, blocks, block, softmax, scores, rescale);
    if constexpr (!kAccumulatesInTwoLevels) consumer.wait_for_pv(accumulators, probabilities);
    accumulators_to_a<Element>(probabilities, scores);
}

// Another block of the same tile.
template <bool kMayBeMasked>
__device__ __forceinline__ void step(
    Consumer& consumer,
    const KeyBlocks& blocks,
    int block,
    Softmax& softmax,
    Scores& scores,
    Probabilities& probabilities,
    Accumulators& accumulators
) {
    float rescale[2];
    overlap_blocks<kMayBeMasked>(
        consumer, blocks, block, softmax, scores, probabilities, accumulators, rescale
    );
    if (any_rescale(rescale)) scale_rows(accumulators, rescale);
}

// The first block of a tile, where no MMA is in flight.
__device__ __forceinline__ void start_tile(
    Consumer& consumer,
    const KeyBlocks& blocks,
    Softmax& softmax,
    Scores& scores,
    Probabilities& probabilities
) {
    float rescale[2];
    consumer.issue_qk(scores);
    consumer.wait_for_qk<0>(scores);
    apply_softmax<true>(consumer, blocks, blocks.end - 1, softmax, scores, rescale);
    accumulators_to_a<Element>(probabilities, scores);
}

// All blocks of a tile but the first. P V of the last is left to the caller.
__device__ __forceinline__ void continue_tile(
    Consumer& consumer,
    const KeyBlocks& blocks,
    Softmax& softmax,
    Scores& scores,
    Probabilities& probabilities,
    Accumulators& accumulators
) {
    int block = blocks.end - 2;
    for (; block >= max(blocks.unmasked_end, blocks.first); --block) {
        step<true>(consumer, blocks, block, softmax, scores, probabilities, accumulators);
    }
    for (; block >= blocks.unmasked_first; --block) {
        step<false>(consumer, blocks, block, softmax, scores, probabilities, accumulators);
    }
    for (; block >= blocks.first; --block) {
        step<true>(consumer, blocks, block, softmax, scores, probabilities, accumulators);
    }
    consumer.release_queries();
}

// The last P V of a tile, overlapped with the first block of the next.
__device__ __forceinline__ void overlap_tiles(
    Consumer& consumer,
    const KeyBlocks& blocks,
    Softmax& softmax,
    Scores& scores,
    Probabilities& probabilities,
    Accumulators& accumulators
) {
    float rescale[2];
    overlap_blocks<true>(
        consumer, blocks, blocks.end - 1, softmax, scores, probabilities, accumulators, rescale
    );
}

}  // namespace tmaasync
