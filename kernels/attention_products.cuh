#pragma once

// What a consumer of attention does with blocks of keys and values: scores, weights, sums.
#include "attention_loads.cuh"
#include "softmax.cuh"
#include "turns.cuh"

namespace tmaasync {

using OperandQ = WgmmaBuffer<Element, QTile::kSwizzle, Major::kK, kGroupRows, HEAD_DIM>;
using OperandK = WgmmaBuffer<Element, KTile::kSwizzle, Major::kK, BLOCK_N, HEAD_DIM>;

// Of 8 bits the tensor cores take values with keys contiguous alone.
template <bool kIsTransposed>
struct ValuesOperand {
    using Type = WgmmaBuffer<Element, VTile::kSwizzle, Major::kMN, BLOCK_N, HEAD_DIM>;
};
template <>
struct ValuesOperand<true> {
    using Type = WgmmaBuffer<Element, VTile::kSwizzle, Major::kK, HEAD_DIM, BLOCK_N>;
};
using OperandV = typename ValuesOperand<kIsFp8>::Type;

using Softmax = SoftmaxOf<kIsFp8 ? 2 : 8, kIsFp8 ? 6 : 0>;

// What a thread holds of its group's rows.
using Scores = float[BLOCK_N / 2];
using Weights = u32[BLOCK_N * sizeof(Element) / 32][4];
using Sums = float[HEAD_DIM / 2];

// Sums of 8-bit products lose what is below about 14 bits in the tensor cores, always towards zero:
// 16384 equal weights would come to three quarters of what they are (measured on an H200). So they
// sum up one block alone, and blocks are added in fp32. There are registers for both while there
// are no scores, for some columns at once: the products of a group are taken one after the other.
constexpr bool kIsInOrder = kIsFp8;
constexpr int kColumnsAtOnce = HEAD_DIM == 192 ? 96 : 64;

// Whether the first scores of a tile are taken before the last sums of the tile before.
constexpr bool kTilesOverlap = QUERY_BUFFERS > 1 && !kIsInOrder;

__device__ __forceinline__ void pass_turn(int group) {
    pass_turn_to(group == CONSUMERS - 1 ? 0 : group + 1);
}

// The warp has read what the barrier guards.
__device__ __forceinline__ void release(SharedMemBarrier& empty) {
    if (lane_index() == 0) empty.arrive();
}

// The same of a block of keys or values: the producer of every CTA that wrote it is told.
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
    int group;
    Ring k_place = Ring::for_consumer();
    Ring v_place = Ring::for_consumer();
    TaskPlace place;  // of the task that is taken next

    // Waits for a task, and for its queries.
    __device__ __forceinline__ void take_task() {
        shared.q_full[place.buffer()][group].wait(place.phase());
        // One lane gives the queries back for its warp: none may be waiting for them still.
        __syncwarp();
        place.step();
    }

    // The task that was taken last, or before that.
    __device__ __forceinline__ const Task& task(u32 before = 0) const {
        return shared.tasks[place.before(1 + before).index];
    }

    // Of a score before softcap's tanh, and in the exponent of 2.
    __device__ __forceinline__ float scale() const {
        return problem.scale * task().factors().scores;
    }
    __device__ __forceinline__ Softmax softmax() const {
        const float factor = HAS_SOFTCAP ? 1 : task().factors().scores;
        return {problem.scale_log2 * factor};
    }

    // What the group walks for it.
    __device__ __forceinline__ KeyBlocks blocks() const {
        return task().is_last ? KeyBlocks{} : task().tile.blocks(problem, group);
    }

    // Blocks that the cluster walks before those of the task.
    __device__ __forceinline__ i32 blocks_to_skip(const KeyBlocks& blocks) const {
        return task().is_last ? 0 : task().tile.blocks(problem).end - blocks.end;
    }

    // Whether the task's first block is the next of the ring.
    __device__ __forceinline__ bool comes_next(const KeyBlocks& blocks) const {
        if constexpr (kSkipsBlocks) {
            if (blocks_to_skip(blocks) > 0) return false;
        }
        return blocks.count() > 0;
    }

    // Gives them back: they are for the peer alone.
    __device__ __forceinline__ void skip_blocks(i32 count) {
        for (i32 skipped = 0; skipped < count; ++skipped) {
            skip(shared.k_full, shared.k_empty, k_place);
            skip(shared.v_full, shared.v_empty, v_place);
        }
    }

    // All scores of the tile are taken.
    __device__ __forceinline__ void release_queries() {
        if constexpr (!O_OVER_Q) release(shared.q_empty[place.before(1).buffer()][group]);
    }

    // scores = Q K^T, as one group of instructions.
    __device__ __forceinline__ void issue_scores(Scores& scores) {
        const u64 q = OperandQ::descriptor(shared.q[place.before(1).buffer()][group], 0);
        const u64 k = OperandK::descriptor(shared.k[k_place.index], 0);
        shared.k_full[k_place.index].wait(k_place.phase);
        wgmma_fence_operands(scores);
        wgmma_fence();
        wgmma_tile<OperandQ, OperandK>(scores, q, k, false);
        wgmma_commit_group();
    }

    // sums += weights V, as one group of instructions.
    __device__ __forceinline__ void issue_sums(Sums& sums, Weights& weights) {
        const u64 v = OperandV::descriptor(shared.v[v_place.index], 0);
        shared.v_full[v_place.index].wait(v_place.phase);
        wgmma_fence_operands(sums);
        wgmma_fence_operands(weights);
        wgmma_fence();
        wgmma_tile_rs<OperandV>(sums, weights, v, true);
        wgmma_commit_group();
    }

    // Waits until at most kPending of the groups run, the scores not among them.
    template <int kPending>
    __device__ __forceinline__ void take_scores(Scores& scores) {
        wgmma_wait_group<kPending>();
        wgmma_fence_operands(scores);
        release_block(shared.k_empty[k_place.index]);
        k_place.step();
    }

    __device__ __forceinline__ void take_sums(Sums& sums, Weights& weights) {
        wgmma_wait_group<0>();
        wgmma_fence_operands(sums);
        wgmma_fence_operands(weights);
        release_block(shared.v_empty[v_place.index]);
        v_place.step();
    }

    // sums += weights V, and waits for it.
    __device__ __forceinline__ void add(Sums& sums, Weights& weights) {
        if constexpr (kIsInOrder) {
            shared.v_full[v_place.index].wait(v_place.phase);
#pragma unroll
            for (int first = 0; first < HEAD_DIM; first += kColumnsAtOnce) {
                add_columns(sums, weights, first);
            }
            release_block(shared.v_empty[v_place.index]);
            v_place.step();
        } else {
            issue_sums(sums, weights);
            take_sums(sums, weights);
        }
    }

private:
    // Of the columns from this one on.
    __device__ __forceinline__ void add_columns(Sums& sums, Weights& weights, int first) {
        float of_block[kColumnsAtOnce / 2];
        wgmma_fence_operands(of_block);
        wgmma_fence_operands(weights);
        wgmma_fence();
        const u64 v = OperandV::descriptor(shared.v[v_place.index], first);
        wgmma_tile_rs<OperandV>(of_block, weights, v, false);
        finish_wgmma<0>(of_block);
        wgmma_fence_operands(weights);
#pragma unroll
        for (int i = 0; i < kColumnsAtOnce / 2; ++i) sums[first / 2 + i] += of_block[i];
    }

    __device__ __forceinline__ static void skip(
        const SharedMemBarrier (&full)[STAGES], SharedMemBarrier (&empty)[STAGES], Ring& place
    ) {
        full[place.index].wait(place.phase);
        // None of the warp may be waiting for it still.
        __syncwarp();
        release_block(empty[place.index]);
        place.step();
    }
};

// Row of the tile of the first of a thread's two rows; the other is eight below.
__device__ __forceinline__ int row_of_thread(int group) {
    return group * kGroupRows + accumulator_row(thread_in_warpgroup(), 0);
}

// What the thread's rows see of a block of keys.
__device__ __forceinline__ Visible
visible_in(const Problem& problem, const Tile& tile, int group, int block) {
    const int first_column = block * BLOCK_N + accumulator_column(thread_in_warpgroup(), 0);
    Visible visible;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_thread(group) + 8 * half;
        const int own = tile.position + row / HEADS_PER_TILE + tile.shift(problem);
        int end = tile.entry.keys.length;
        if constexpr (HAS_RIGHT) end = min(end, own + problem.right + 1);
        visible.end[half] = end - first_column;
        visible.first[half] = own - problem.left - first_column;
    }
    return visible;
}

template <bool kMayBePartial>
__device__ __forceinline__ void weigh_scores(
    const Consumer& consumer,
    const KeyBlocks& blocks,
    int block,
    Softmax& softmax,
    Scores& scores,
    float (&rescale)[2]
) {
    if constexpr (HAS_SOFTCAP) cap_scores(scores, consumer.scale());
    if constexpr (kMayBePartial) {
        if (!blocks.is_whole(block)) {
            const Tile& tile = consumer.task().tile;
            mask_scores(scores, visible_in(consumer.problem, tile, consumer.group, block));
        }
    }
    softmax.weigh<kMayBePartial>(scores, rescale);
}

__device__ __forceinline__ void scale_rows(Sums& sums, const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) sums[i] *= by[i / 2 % 2];
}

// A block of keys: its scores are multiplied while the weights of the block before are summed up,
// and weighed while that goes on; or, in order, behind it, while other groups' blocks are weighed.
template <bool kMayBePartial>
__device__ __forceinline__ void advance(
    Consumer& consumer,
    const KeyBlocks& blocks,
    int block,
    Softmax& softmax,
    Scores& scores,
    Weights& weights,
    Sums& sums,
    float (&rescale)[2]
) {
    take_turn(consumer.group);
    if constexpr (kIsInOrder) consumer.add(sums, weights);
    consumer.issue_scores(scores);
    if constexpr (!kIsInOrder) consumer.issue_sums(sums, weights);
    pass_turn(consumer.group);
    consumer.take_scores<kIsInOrder ? 0 : 1>(scores);
    weigh_scores<kMayBePartial>(consumer, blocks, block, softmax, scores, rescale);
    if constexpr (!kIsInOrder) consumer.take_sums(sums, weights);
    accumulators_to_a<Element>(weights, scores);
}

// Another block of the same tile.
template <bool kMayBePartial>
__device__ __forceinline__ void step(
    Consumer& consumer,
    const KeyBlocks& blocks,
    int block,
    Softmax& softmax,
    Scores& scores,
    Weights& weights,
    Sums& sums
) {
    float rescale[2];
    advance<kMayBePartial>(consumer, blocks, block, softmax, scores, weights, sums, rescale);
    if (changes(rescale)) scale_rows(sums, rescale);
}

// The first block of a tile, where nothing else runs.
__device__ __forceinline__ void begin(
    Consumer& consumer, const KeyBlocks& blocks, Softmax& softmax, Scores& scores, Weights& weights
) {
    float rescale[2];
    consumer.issue_scores(scores);
    consumer.take_scores<0>(scores);
    weigh_scores<true>(consumer, blocks, blocks.end - 1, softmax, scores, rescale);
    accumulators_to_a<Element>(weights, scores);
}

// All blocks of a tile but the first. The weights of the last are left to be summed.
__device__ __forceinline__ void go_on(
    Consumer& consumer,
    const KeyBlocks& blocks,
    Softmax& softmax,
    Scores& scores,
    Weights& weights,
    Sums& sums
) {
    int block = blocks.end - 2;
    for (; block >= max(blocks.whole_end, blocks.first); --block) {
        step<true>(consumer, blocks, block, softmax, scores, weights, sums);
    }
    for (; block >= blocks.whole_first; --block) {
        step<false>(consumer, blocks, block, softmax, scores, weights, sums);
    }
    for (; block >= blocks.first; --block) {
        step<true>(consumer, blocks, block, softmax, scores, weights, sums);
    }
    consumer.release_queries();
}

// The last sums of a tile, while the first block of the next is multiplied and weighed.
__device__ __forceinline__ void change_over(
    Consumer& consumer,
    const KeyBlocks& blocks,
    Softmax& softmax,
    Scores& scores,
    Weights& weights,
    Sums& sums
) {
    float rescale[2];
    advance<true>(consumer, blocks, blocks.end - 1, softmax, scores, weights, sums, rescale);
}

}  // namespace tmaasync
