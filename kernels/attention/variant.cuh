#pragma once

// The attention variant of a consumer: masks, score function and epilogue. attention.cu explains
// the constants.
#include <tmaasync/attention/consumer.cuh>
#include <tmaasync/attention/store_rows.cuh>
#include <tmaasync/attention/variant.cuh>

#include "abi.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
#include "scheduler.cuh"
#include "split_kv.cuh"

namespace tmaasync::kernels::attention {

// Output stores tiles as OTile does.
template <typename Output>
struct Variant : AttentionVariant {
    static constexpr bool kSkipsBlocks = kTilesDiffer;
    static constexpr bool kStoreReleasesQueries = O_OVER_Q;

    SharedMemory& shared;
    const Problem& problem;
    const Output& o;
    float* lse;
    TilePartial* partials;
    int consumer;

    // --- the mask and the scores ---

    __device__ __forceinline__ KeyBlocks blocks(const Task& task) const {
        return task.tile.blocks(problem, consumer);
    }

    __device__ __forceinline__ i32 blocks_to_skip(const Task& task, const KeyBlocks& blocks) const {
        return task.tile.blocks(problem).end - blocks.end;
    }

    __device__ __forceinline__ Softmax softmax(const Task& task) const {
        if constexpr (kCapsScores) return {problem.scale_log2};
        return {descaled(task, problem.scale_log2, kLargestFactor)};
    }

    template <typename Scores>
    __device__ __forceinline__ void transform_scores(const Task& task, i32, Scores& scores) const {
        if constexpr (kCapsScores) {
            cap_scores(scores, descaled(task, problem.scale, kLargestFloat / 4));
        }
    }

    template <typename Scores>
    __device__ __forceinline__ void mask_scores(const Task& task, i32 block, Scores& scores) const {
        const int row = row_of_thread(consumer);
        const RowPositions positions{{task.tile.position_of(row), task.tile.position_of(row + 8)}};
        task.tile.mask(problem).mask(scores, positions, block);
    }

    // --- the epilogue ---

    // Compute the factors of the output's rows, and write the log-sum-exp. For a split tile row_max
    // and row_sum are written, and only FP8 rows are normalised, with the descale factor of V.
    __device__ __forceinline__ void finish(
        const Task& task, const Softmax& softmax, float (&normalizers)[2]
    ) const {
        const float row_sums[2] = {softmax.row_sum(0), softmax.row_sum(1)};
        float values[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            normalizers[half] =
                inverse_row_sum(softmax.multiplied_sum(half)) * task.descale().values;
            values[half] = log_sum_exp(softmax.scaled_max(half), row_sums[half]);
        }
        if constexpr (SPLITS_KEYS) {
            if (task.tile.is_split()) {
                write_partial_softmax(partial_of(task.tile), softmax, row_sums);
                return;
            }
        }
        if constexpr (HAS_LSE) write_lse(problem, task.tile, consumer, values, lse);
    }

    __device__ __forceinline__ void store(
        const Task& task, Accumulators& accumulators, const float (&normalizers)[2]
    ) const {
        const Tile& tile = task.tile;
        if constexpr (SPLITS_KEYS) {
            if (tile.is_split()) {
                if constexpr (kIsFp8) scale_rows(accumulators, normalizers);
                write_partial(partial_of(tile), accumulators, tile, consumer);
                if constexpr (O_OVER_Q) shared.queries.consumer_release(0, consumer);
                return;
            }
        }
        auto& staged = shared.staged(shared.queries.queries[0][consumer], consumer);
        store_attention_rows<StagedOutput>(staged, accumulators, normalizers, consumer, [&] {
            store_staged(o, staged, tile, consumer);
            if constexpr (O_OVER_Q) {
                wait_group_read<0>();
                shared.queries.consumer_release_by_one_thread(0, consumer);
            }
        });
    }

private:
    // FP8 scores are below 2^26, so that scaled ones fit in fp32.
    static constexpr float kLargestFactor = 1.2676506002282294e30f;  // 2^100

    // A factor of scores, times the descale factors of FP8 queries and keys.
    __device__ __forceinline__ float descaled(const Task& task, float factor, float most) const {
        if constexpr (!kIsFp8) return factor;
        return score_factor(factor * task.descale().scores, most);
    }

    // The consumer's partial output for a split tile.
    __device__ __forceinline__ ConsumerPartial& partial_of(const Tile& tile) const {
        return partials[tile.slot() * CLUSTER + Span::rank_m()].consumers[consumer];
    }
};

}  // namespace tmaasync::kernels::attention
