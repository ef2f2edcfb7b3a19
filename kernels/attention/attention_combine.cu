// The combine kernel of split-KV (flash-decoding, Dao et al. 2023): rescales the partial outputs of
// a tile to a common row_max, adds them up, and stores the output and its log-sum-exp.
//
//   WARPS  warps of a CTA, each of which combines one row at a time
//
// Types and other constants are as in attention.cu. For padded arrays `schedule` holds the
// SplitSpans. Packed sequences have `splits_per_tile` splits per tile, and `schedule` is the
// WorkList of attention.cu. Without a work list, sequences are checked here: a sequence that
// exceeds the arrays or has a page that does not exist is skipped, and the number of one of them,
// counted from 1, is written to `broken_sequence`.
// Grid: CONSUMERS CTAs per tile, with CLUSTER tiles per split span, or the maximum number of tiles;
// 32 * WARPS threads.
#include <tmaasync/ptx/system.cuh>
#include <tmaasync/warp_reductions.cuh>

#include "abi.cuh"
#include "batch.cuh"
#include "epilogue.cuh"
#include "scheduler.cuh"
#include "split_kv.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::attention;

using Output = typename OTile::Element;

struct CombineSharedMemory {
    typename OTile::Shared o;
    float lse[kConsumerRows];
};

extern "C" __device__ const int attention_combine_shared_bytes = sizeof(CombineSharedMemory);

// The partial outputs of one consumer of a tile.
struct Partials {
    const TilePartial* first;
    i32 count;
    i32 consumer;

    __device__ __forceinline__ const ConsumerPartial& operator[](i32 index) const {
        return first[index * CLUSTER].consumers[consumer];
    }
};

// The tile that a CTA combines, and its partial outputs.
struct SplitTile {
    Tile tile;
    Partials partials;
    bool exists;
};

__device__ __forceinline__ SplitTile split_tile(
    const Problem& problem,
    const TilePartial* partials,
    const void* schedule,
    const Batch& batch,
    i32 splits_per_tile
) {
    SplitTile found{
        {}, {partials, splits_per_tile, static_cast<i32>(blockIdx.x) % CONSUMERS}, true
    };
    const i32 index = blockIdx.x / CONSUMERS;
    if constexpr (IS_PACKED) {
        const auto tiles = packed_tiles(problem, schedule, batch);
        found.exists = index < tiles.count();
        if (found.exists) found.tile = tiles.at(index);
        found.partials.first += index * splits_per_tile;
    } else {
        const auto& split = static_cast<const SplitSpan*>(schedule)[index / CLUSTER];
        found.tile = PaddedTiles(problem).at(split.span, index % CLUSTER);
        found.partials.first += split.first_slot * CLUSTER + index % CLUSTER;
        found.partials.count = split.splits;
    }
    return found;
}

struct alignas(16) Quad {
    float values[4];
};

constexpr int kQuads = HEAD_DIM / 4;
constexpr int kQuadsOfLane = (kQuads + 31) / 32;

// Partial outputs whose loads are in flight together. With 16 instead of 8, issued before the
// factors are known, decode of 32768 keys took 36.6 us instead of 37.5 (bench_decode.py --paged,
// padded, on an H200, 2026-11-23). They use 107 of the 128 registers that 512 threads have.
constexpr int kAtOnce = 16 / kQuadsOfLane;

// A row of the output. Each lane of a warp has four of every 128 columns.
struct Row {
    int row;
    float row_max = masked_score();
    float row_sum = 0;
    Quad accumulators[kQuadsOfLane] = {};
    Quad loaded[kAtOnce][kQuadsOfLane];

    __device__ __forceinline__ explicit Row(int row) : row(row) {}

    // Add up to 32 partial outputs from `first` on. Each lane computes the factor of one.
    __device__ __forceinline__ void add(const Partials& partials, i32 first) {
        const i32 count = min(partials.count - first, 32), lane = lane_index();
        float own_max = masked_score(), own_sum = 0;
        if (lane < count) {
            own_max = partials[first + lane].row_max[row];
            own_sum = partials[first + lane].row_sum[row];
        }
        load(partials, first);
        const float old_max = row_max;
        row_max = fmaxf(row_max, max_of_warp(own_max));
        const float subtracted = row_max == masked_score() ? 0 : row_max;
        const float factor = ptx::ex2_approx_ftz(own_max - subtracted);
        const float scaled_sum = factor * own_sum;
        scale(ptx::ex2_approx_ftz(old_max - subtracted));
        row_sum += sum_of_warp(scaled_sum);
        for (i32 i = 0; i < count; i += kAtOnce) {
            if (i > 0) load(partials, first + i);
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                add(j, __shfl_sync(kWholeWarp, kIsFp8 ? scaled_sum : factor, i + j));
            }
        }
    }

    // Normalise the output and stage it.
    __device__ __forceinline__ void write(typename OTile::Shared& staged) {
        struct alignas(8) Four {
            u32 pairs[2];
        };
        scale(inverse_row_sum(row_sum));
#pragma unroll
        for (int i = 0; i < kQuadsOfLane; ++i) {
            if (!has(i)) continue;
            const float* v = accumulators[i].values;
            auto* target = staged.bytes + StagedOutput::offset_bytes(row, 4 * quad(i));
            *reinterpret_cast<Four*>(target) = {
                pack_pair<Output>(v[0], v[1]), pack_pair<Output>(v[2], v[3])
            };
        }
    }

private:
    __device__ __forceinline__ static int quad(int i) { return 32 * i + lane_index(); }
    __device__ __forceinline__ static bool has(int i) {
        return kQuads % 32 == 0 || quad(i) < kQuads;
    }

    // Load the row of partial outputs from `first` on; zeros after the last.
    __device__ __forceinline__ void load(const Partials& partials, i32 first) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            const auto* quads =
                reinterpret_cast<const Quad*>(partials[first + j].accumulators[row]);
#pragma unroll
            for (int i = 0; i < kQuadsOfLane; ++i) {
                loaded[j][i] = has(i) && first + j < partials.count ? quads[quad(i)] : Quad{};
            }
        }
    }

    __device__ __forceinline__ void add(int partial, float factor) {
#pragma unroll
        for (int i = 0; i < kQuadsOfLane; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float& sum = accumulators[i].values[j];
                sum = fmaf(factor, loaded[partial][i].values[j], sum);
            }
        }
    }

    __device__ __forceinline__ void scale(float factor) {
        row_sum *= factor;
#pragma unroll
        for (auto& quad : accumulators) {
#pragma unroll
            for (float& value : quad.values) value *= factor;
        }
    }
};

// Whether the sequence of a tile exceeds the arrays, or this thread finds a page that does not
// exist. If some warps have no row of queries, they search: the others load partial outputs.
__device__ __forceinline__ bool finds_broken(
    const Batch& batch, const Problem& problem, const Tile& tile, i32 consumer
) {
    const i32 rows = tile.entry.queries.length * HEADS_PER_TILE - consumer * kConsumerRows;
    const i32 busy = rows < WARPS ? max(rows, 0) : 0;
    const i32 warp = warp_index() - busy;
    if (warp < 0) return false;
    return entry_of(batch, problem, tile.entry.index).is_broken ||
           has_wrong_page(problem, tile.entry, 32 * warp + lane_index(), 32 * (WARPS - busy));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) attention_combine(
    const __grid_constant__ OTile o,
    float* lse,
    const TilePartial* partials,
    void* schedule,
    const i32* cu_seqlens_q,
    const i32* cu_seqlens_k,
    const i32* page_table,
    i32* broken_sequence,
    int splits_per_tile,
    const __grid_constant__ Problem problem,
    const __grid_constant__ BatchLimits limits
) {
    auto& shared = dynamic_shared<CombineSharedMemory>();
    launch_dependent_grids();
    // Earlier grids write the list of packed tiles, or the lengths.
    if constexpr (IS_PACKED) wait_for_previous_grids();
    const Batch batch{limits, cu_seqlens_q, cu_seqlens_k, page_table};
    const auto [tile, splits, exists] =
        split_tile(problem, partials, schedule, batch, splits_per_tile);
    if (!exists) return;
    const i32 consumer = splits.consumer;
    wait_for_previous_grids();
    for (int index = warp_index(); index < kConsumerRows; index += WARPS) {
        const int row_of_tile = consumer * kConsumerRows + index;
        if (!tile.is_query(row_of_tile)) continue;
        Row row{index};
        for (i32 first = 0; first < splits.count; first += 32) row.add(splits, first);
        if constexpr (HAS_LSE) {
            const float value = log_sum_exp(row.row_max, row.row_sum);
            if (lane_index() == 0) shared.lse[index] = value;
        }
        row.write(shared.o);
    }
    fence_async_view_proxy();
    if (__syncthreads_or(ONE_TILE_EACH && finds_broken(batch, problem, tile, consumer))) {
        // CTAs of other heads and sequences may report too; the host reads one report.
        if (threadIdx.x == 0) {
            ptx::st_release_sys(reinterpret_cast<u32*>(broken_sequence), tile.entry.index + 1);
        }
        return;
    }
    if (threadIdx.x == 0) store_staged(o, shared.o, tile, consumer);
    if constexpr (HAS_LSE) {
        const int row = consumer * kConsumerRows + threadIdx.x;
        if (threadIdx.x < kConsumerRows && tile.is_query(row)) {
            lse_at(problem, tile, row, lse) = shared.lse[threadIdx.x];
        }
    }
    if (threadIdx.x == 0) wait_group_read<0>();
}
