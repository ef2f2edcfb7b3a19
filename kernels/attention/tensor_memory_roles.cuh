#pragma once

// The roles of attention_tensor_memory.cu that compute, after FlashAttention-4: one thread
// multiplies, a warpgroup for each query tile computes probabilities, and a warpgroup rescales and
// stores the output.
#include "tensor_memory.cuh"

namespace tmaasync::kernels::attention {

// --- mma -----------------------------------------------------------------------------------------

// S = Q K^T of each query tile, then block by block O += P V and S of the next block. S lies over
// P, so it waits until O is complete; the softmax of the other query tile runs meanwhile.
class Multiplier {
public:
    __device__ __forceinline__ Multiplier(SharedMemory& shared, const TmemTiles& tmem)
        : shared_(shared), tmem_(tmem), stages_(shared.blocks.consumer()) {}

    // Multiply a tile with this many blocks of keys, at least one.
    __device__ __forceinline__ void multiply(i32 blocks) {
        const u32 keys = take_stage();
        for (int tile = 0; tile < kQueryTiles; ++tile) {
            shared_.tiles[tile].queries_full.wait(tiles_ & 1);
            multiply_scores(tile, keys, blocks_, blocks == 1);
        }
        stages_.release(keys);
        for (i32 block = 0; block + 1 < blocks; ++block) {
            multiply_block(block > 0, block + 2 == blocks);
        }
        const u32 values = take_stage();
        for (int tile = 0; tile < kQueryTiles; ++tile) {
            multiply_values(tile, values, blocks > 1);
        }
        stages_.release(values);
        ++blocks_;
        ++tiles_;
    }

private:
    // The values of a block and the keys of the block after it, which is_last or not.
    __device__ __forceinline__ void multiply_block(bool accumulates, bool is_last) {
        const u32 values = take_stage(), keys = take_stage();
        for (int tile = 0; tile < kQueryTiles; ++tile) {
            multiply_values(tile, values, accumulates);
            if (tile + 1 == kQueryTiles) stages_.release(values);
            multiply_scores(tile, keys, blocks_ + 1, is_last);
        }
        stages_.release(keys);
        ++blocks_;
    }

    // S, after this many blocks of O.
    __device__ __forceinline__ void multiply_scores(int tile, u32 keys, u32 blocks, bool is_last) {
        auto& barriers = shared_.tiles[tile];
        barriers.accumulators_full.wait(blocks & 1 ^ 1);
        tcgen05_fence_after_thread_sync();
        tcgen05_mma<Q, K>(
            tmem_.scores(tile), shared_.queries[tile], shared_.blocks.stages[keys], false
        );
        tcgen05_commit(barriers.scores_full);
        if (is_last) tcgen05_commit(barriers.queries_empty);
    }

    __device__ __forceinline__ void multiply_values(int tile, u32 values, bool accumulates) {
        auto& barriers = shared_.tiles[tile];
        barriers.accumulators_ready.wait(blocks_ & 1);
        barriers.probabilities_full.wait(blocks_ & 1);
        tcgen05_fence_after_thread_sync();
        tcgen05_mma<Element, V>(
            tmem_.accumulators(tile), tmem_.probabilities(tile), shared_.blocks.stages[values],
            accumulates
        );
        tcgen05_commit(barriers.accumulators_full);
    }

    // Wait for the next stage, and return its index.
    __device__ __forceinline__ u32 take_stage() {
        stages_.wait();
        const u32 index = stages_.index();
        stages_.step();
        return index;
    }

    SharedMemory& shared_;
    TmemTiles tmem_;
    RingConsumer<decltype(SharedMemory::blocks), Proxy::kAsync> stages_;
    u32 blocks_ = 0;  // multiplied by values
    u32 tiles_ = 0;
};

// --- softmax -------------------------------------------------------------------------------------

// Computes the probabilities of a query tile, a row in each thread. The rescaling threshold keeps
// P below 2^8, so that fp16 holds it.
class SoftmaxRole {
    static constexpr int kChunk = 32;

public:
    __device__ __forceinline__ SoftmaxRole(
        SharedMemory& shared, const TmemTiles& tmem, const Problem& problem, int index
    )
        : shared_(shared),
          barriers_(shared.tiles[index]),
          scores_(tmem.scores(index)),
          probabilities_(tmem.probabilities(index)),
          problem_(problem),
          index_(index),
          row_(index * kQueryRows + static_cast<int>(thread_in_warpgroup())) {}

    __device__ __forceinline__ void compute(const Tile& tile, float* lse, TilePartial* partials) {
        const KeyBlocks blocks = blocks_of(tile, problem_, index_);
        RowSoftmax<8> softmax(problem_.scale_log2);
        for (i32 block = blocks.end - 1; block >= blocks.first; --block) {
            float scores[BLOCK_N];
            load_scores(scores);
            if constexpr (HAS_SOFTCAP) cap_scores(scores, problem_.scale);
            if (!blocks.is_unmasked(block)) {
                tile.mask(problem_).mask_row(scores, tile.position_of(row_), block);
            }
            const float rescale = softmax.start_block(scores);
            if (block + 1 < blocks.end) write_row_factor(rescale);
            store_probabilities(softmax, scores);
        }
        const float sum = softmax.row_sum();
        if (blocks.count() > 0) {
            // The factor of the last block has been read.
            barriers_.accumulators_ready.wait(blocks_ & 1 ^ 1);
            write_row_factor(tile.is_split() ? 1 : inverse_row_sum(sum));
        }
        if (!tile.is_query(row_)) return;
        if (tile.is_split()) {
            auto& partial = partial_of(partials, tile, row_);
            partial.row_max[row_ % kConsumerRows] = softmax.scaled_max();
            partial.row_sum[row_ % kConsumerRows] = sum;
        } else if constexpr (HAS_LSE) {
            lse_at(problem_, tile, row_, lse) = log_sum_exp(softmax.scaled_max(), sum);
        }
    }

private:
    __device__ __forceinline__ void load_scores(float (&scores)[BLOCK_N]) {
        barriers_.scores_full.wait(blocks_ & 1);
        tcgen05_fence_after_thread_sync();
#pragma unroll
        for (int column = 0; column < BLOCK_N; column += kChunk) {
            scores_.load(reinterpret_cast<float (&)[kChunk]>(scores[column]), column);
        }
        tmem_wait_loads();
        ++blocks_;
    }

    template <typename Softmax>
    __device__ __forceinline__ void store_probabilities(
        Softmax& softmax, const float (&scores)[BLOCK_N]
    ) {
        constexpr int kWords = 16;  // at once: with 32 the kernel spills (ptxas 13.5)
#pragma unroll
        for (int first = 0; first < BLOCK_N / 2; first += kWords) {
            u32 words[kWords];
#pragma unroll
            for (int i = 0; i < kWords; ++i) {
                const int at = first + i;
                const float2 pair = softmax.probabilities(scores[2 * at], scores[2 * at + 1], at);
                words[i] = pack_pair<Element>(pair.x, pair.y);
            }
            probabilities_.store(words, first);
        }
        tmem_wait_stores();
        arrive_by_warp(barriers_.probabilities_full);
    }

    __device__ __forceinline__ void write_row_factor(float factor) {
        shared_.row_factors[row_] = factor;
        arrive_by_warp(barriers_.row_factors_full);
    }

    SharedMemory& shared_;
    QueryTileBarriers& barriers_;
    Scores scores_;
    Probabilities probabilities_;
    const Problem& problem_;
    int index_;
    int row_;         // of the tile
    u32 blocks_ = 0;  // of scores
};

// --- correction ----------------------------------------------------------------------------------

// Rescales the accumulators of all query tiles where a row's maximum has grown, and at the end
// normalises and stores them; or writes them as a partial output. A thread has a row of each.
class Correction {
public:
    __device__ __forceinline__ Correction(
        SharedMemory& shared, const TmemTiles& tmem, const OTile& o, TilePartial* partials
    )
        : shared_(shared), tmem_(tmem), o_(o), partials_(partials) {
        for (auto& barriers : shared_.tiles) arrive_by_warp(barriers.accumulators_ready);
    }

    __device__ __forceinline__ void correct(const Tile& tile, i32 blocks) {
        for (i32 block = 1; block < blocks; ++block) {
            for (int index = 0; index < kQueryTiles; ++index) rescale(index);
            ++blocks_;
        }
        for (int index = 0; index < kQueryTiles; ++index) store(tile, index, blocks > 0);
        if (blocks > 0) ++blocks_;
    }

    // Wait until TMA has read the staged output.
    __device__ __forceinline__ void drain() const {
        if (leads()) wait_group_read<0>();
    }

private:
    static constexpr int kChunk = 16;  // columns: with 32 the kernel spills (ptxas 13.5)

    __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }

    // The row's factor, once O is complete up to the block before.
    __device__ __forceinline__ float take_row_factor(int index) const {
        auto& barriers = shared_.tiles[index];
        barriers.row_factors_full.wait(blocks_ & 1);
        barriers.accumulators_full.wait(blocks_ & 1);
        tcgen05_fence_after_thread_sync();
        return shared_.row_factors[index * kQueryRows + thread_in_warpgroup()];
    }

    __device__ __forceinline__ void rescale(int index) const {
        const float factor = take_row_factor(index);
        if (__any_sync(kWholeWarp, factor != 1)) {
            const auto accumulators = tmem_.accumulators(index);
#pragma unroll
            for (int column = 0; column < HEAD_DIM; column += kChunk) {
                float values[kChunk];
                accumulators.load(values, column);
                tmem_wait_loads();
#pragma unroll
                for (float& value : values) value *= factor;
                accumulators.store(values, column);
            }
            tmem_wait_stores();
        }
        arrive_by_warp(shared_.tiles[index].accumulators_ready);
    }

    // Store a query tile; zeros if there are no keys.
    __device__ __forceinline__ void store(const Tile& tile, int index, bool has_keys) const {
        const float factor = has_keys ? take_row_factor(index) : 0;
        if (tile.is_split()) {
            const int row = index * kQueryRows + thread_in_warpgroup();
            take_accumulators(index, has_keys, [&](const float (&values)[kChunk], int column) {
                if (tile.is_query(row)) write_partial(tile, row, values, column);
            });
            return;
        }
        drain();
        barrier_.sync();
        take_accumulators(index, has_keys, [&](const float (&values)[kChunk], int column) {
            stage(values, factor, column);
        });
        fence_async_view_proxy();
        barrier_.sync();
        if (leads()) {
            const i32 position = tile.position + index * kQueryPositions;
            store_rows(o_, shared_.output, tile.entry, tile.head, position);
            commit_group();
        }
    }

    // Call write(values, column) for all columns of the thread's row; with zeros without keys.
    template <typename Write>
    __device__ __forceinline__ void take_accumulators(
        int index, bool has_keys, const Write& write
    ) const {
        const auto accumulators = tmem_.accumulators(index);
#pragma unroll
        for (int column = 0; column < HEAD_DIM; column += kChunk) {
            float values[kChunk] = {};
            if (has_keys) {
                accumulators.load(values, column);
                tmem_wait_loads();
            }
            write(values, column);
        }
        if (has_keys) arrive_by_warp(shared_.tiles[index].accumulators_ready);
    }

    // Write columns of the row to the workspace.
    __device__ __forceinline__ void write_partial(
        const Tile& tile, int row, const float (&values)[kChunk], int column
    ) const {
        auto& target = partial_of(partials_, tile, row).accumulators[row % kConsumerRows];
#pragma unroll
        for (int i = 0; i < kChunk; i += 4) {
            reinterpret_cast<float4&>(target[column + i]) = {
                values[i], values[i + 1], values[i + 2], values[i + 3]
            };
        }
    }

    // Write columns of the row to shared memory.
    __device__ __forceinline__ void stage(
        const float (&values)[kChunk], float factor, int column
    ) const {
        constexpr int kUnit = 8;  // elements of 16 bytes
#pragma unroll
        for (int first = 0; first < kChunk; first += kUnit) {
            u32 words[kUnit / 2];
#pragma unroll
            for (int i = 0; i < kUnit / 2; ++i) {
                const int at = first + 2 * i;
                words[i] = pack_pair<OTile::Element>(values[at] * factor, values[at + 1] * factor);
            }
            const u32 offset = O::offset_bytes(thread_in_warpgroup(), column + first);
            *reinterpret_cast<uint4*>(shared_.output.bytes + offset) = {
                words[0], words[1], words[2], words[3]
            };
        }
    }

    SharedMemory& shared_;
    TmemTiles tmem_;
    const OTile& o_;
    TilePartial* partials_;
    NamedBarrier<128> barrier_{1};
    u32 blocks_ = 0;  // of accumulators
};

}  // namespace tmaasync::kernels::attention
