// Attention: O = softmax(scale * Q K^T + mask) V, head by head, and the log-sum-exp of every row.
// A warp-specialised persistent kernel after FlashAttention-3 (Shah et al. 2024): ping-pong
// consumers, MMAs that overlap the softmax, and the lazy rescaling of FlashAttention-4. With
// split-KV (flash-decoding) attention_combine.cu follows.
//
//   QTile, OTile    64 rows of queries or output, over the whole head dimension
//   KTile, VTile    BLOCK_N rows of keys or values; BLOCK_N columns of FP8 values that
//                   attention_values.cu has transposed
//   TRANSPOSES_V    whether FP8 V has the layout of K in memory, and the producer's other warps
//                   transpose each block
//   HAS_FEW_ROWS    whether no tile has more than 8 rows of queries
//   CONSUMERS       consumer warpgroups, of 64 rows of queries each
//   BLOCK_N         keys per block
//   HEAD_DIM        columns of the tiles: the head dimension, zero-padded to a multiple of 64 bytes
//   STAGES          stages of each pipeline, of keys and of values
//   QUERY_BUFFERS   1, or 2: queries are loaded during the previous tile; with 16-bit elements the
//                   first S of a tile then overlaps the last P V of the previous tile
//   HEADS_PER_TILE  query heads of one KV head that share a tile (GQA packing)
//   CLUSTER         CTAs that share loads of keys and values: 1, or 2 without packed sequences.
//                   Each CTA loads half of the boxes and multicasts them to both
//   IS_PACKED       whether sequences are packed back to back (varlen); else every entry has its
//                   own slice
//   PAGE_SIZE       rows per page of the paged KV cache of packed sequences; 0 without pages
//   ONE_TILE_EACH   packed sequences: whether each sequence has one tile per tile of heads, so that
//                   no work list is needed
//   HAS_LEFT        whether keys far before a position are masked: a sliding window
//   HAS_RIGHT       whether keys far after a position are masked: a window, or a causal mask
//   HAS_SOFTCAP     whether scores are cap * tanh(score / cap)
//   HAS_LSE         whether the log-sum-exp is written
//   O_OVER_Q        whether the output is staged in the queries' memory; else in its own
//   SPLITS_KEYS     split-KV: whether the keys of a tile may be split over several clusters
//
// For packed sequences `schedule` is the WorkList of attention_work.cu, if there is one; else
// `cu_seqlens_q`, `cu_seqlens_k` and `page_table` describe them. For padded arrays whose tiles
// differ because of a mask, it is the number of each cluster's span in each of `waves`, or with
// split-KV the ScheduledSpan. For packed sequences with split-KV, `waves` is the number of splits
// per tile. `partials` is the workspace for split tiles. For FP8, `scales` and its optional arrays
// `scale_q`, `scale_k` and `scale_v` of [entries, KV heads] determine the Descale of each tile.
//
// Grid: any number of clusters of CLUSTER CTAs, of 128 * (1 + CONSUMERS) threads. At the edges of
// the arrays TMA fills loads with zeros, so that no NaN of other data is read, and clips stores.
#include <tmaasync/attention/consumer.cuh>
#include <tmaasync/structured/roles.cuh>

#include "abi.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
#include "producer.cuh"
#include "scheduler.cuh"
#include "variant.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::attention;

// Registers per thread that a producer keeps and a consumer claims. The CTA has 64 Ki; a single
// consumer, or tiles for less shared memory than Hopper's, have enough without a claim. A producer
// that multicasts, transposes, or looks up several pages per block needs more.
constexpr bool kClaims = CONSUMERS > 1 && (kHasWgmma || sizeof(SharedMemory) > 99 * 1024);
constexpr bool kBlockHasPages = PAGE_SIZE > 0 && PAGE_SIZE % BLOCK_N != 0;
constexpr bool kNeedsMore = kHasWgmma && (CLUSTER > 1 || TRANSPOSES_V || kBlockHasPages);
using Registers = RegisterSplit<
    !kClaims         ? 0
    : CONSUMERS == 3 ? 32
    : kNeedsMore     ? 40
                     : 24,
    !kClaims         ? 0
    : CONSUMERS == 3 ? 160
    : kNeedsMore     ? 232
                     : 240>;
using Roles = WarpSpecialized<CONSUMERS, Registers, CLUSTER>;

extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) attention(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ VTile v,
    const __grid_constant__ OTile o,
    float* lse,
    TilePartial* partials,
    const float* scale_q,
    const float* scale_k,
    const float* scale_v,
    void* schedule,
    const i32* cu_seqlens_q,
    const i32* cu_seqlens_k,
    const i32* page_table,
    int waves,
    const __grid_constant__ Problem problem,
    const __grid_constant__ Scales scales,
    const __grid_constant__ BatchLimits limits
) {
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run_with_helpers(
        shared,
        [&] {
            const Descales descales{scales, scale_q, scale_k, scale_v};
            Producer producer{problem, q, k, v, descales, AttentionProducer<Pipelines>(shared)};
            if constexpr (IS_PACKED) {
                const Batch batch{limits, cu_seqlens_q, cu_seqlens_k, page_table};
                load_tiles(producer, packed_schedule(problem, schedule, batch, waves));
            } else {
                load_tiles(producer, padded_schedule(problem, schedule, waves));
            }
        },
        [&](int helper) { transpose_values<Pipelines>(shared, helper); },
        [&](int index) {
            AttentionConsumer<Pipelines> consumer(shared, index);
            consumer.attend(Variant<OTile>{{}, shared, problem, o, lse, partials, index});
        },
        q, k, v, o
    );
}
