#pragma once

// The tile config of the attention backward, and its operands, derived from the host's types and
// constants, which attention_backward.cu explains.
#include <tmaasync/attention/mask.cuh>
#include <tmaasync/wgmma.cuh>

#include "abi.cuh"

namespace tmaasync::kernels::attention_backward {

using Element = typename QTile::Element;

constexpr int kConsumers = 2;
constexpr int kConsumerKeys = 64;  // keys of a tile per consumer warpgroup
constexpr int kTileKeys = kConsumers * kConsumerKeys;

// How consumers share dQ of a tile, given M = 64 of wgmma: each has 64 rows, or half of the
// columns. If the rows are not a multiple of 64, dQ^T is computed instead, with 64 columns of dQ
// along M and the queries along N (FlashAttention-3's dQ_swapAB).
enum class DqShare { kRows, kColumns, kTransposedColumns };
constexpr DqShare kDqShare = BLOCK_M == 64 * kConsumers ? DqShare::kRows
                             : BLOCK_M == 64            ? DqShare::kColumns
                                                        : DqShare::kTransposedColumns;
constexpr int kDqColumns = kDqShare == DqShare::kRows ? HEAD_DIM : HEAD_DIM / kConsumers;
constexpr int kDqAccumulators = BLOCK_M * HEAD_DIM / (128 * kConsumers);

static_assert(BLOCK_M % 16 == 0, "queries are K of dV and dK");
static_assert(
    kDqShare != DqShare::kTransposedColumns || kDqColumns == 64,
    "64 queries, 64 for each consumer, or 64 columns of dQ for each"
);

// Operands of 64 rows of keys or values, and of BLOCK_M rows of queries or dO, with the rows along
// M or N, or along K.
template <Major kMajor>
using KeysOperand = WgmmaBuffer<Element, KTile::kSwizzle, kMajor, kConsumerKeys, HEAD_DIM>;
template <Major kMajor>
using QueriesOperand = WgmmaBuffer<Element, QTile::kSwizzle, kMajor, BLOCK_M, HEAD_DIM>;

// dS of a consumer's keys: BLOCK_M rows, one column per key.
using DsOperand = WgmmaBuffer<Element, Swizzle::k128B, Major::kK, BLOCK_M, kConsumerKeys>;
struct alignas(alignment_bytes(Swizzle::k128B)) DsPanel {
    unsigned char bytes[BLOCK_M * kConsumerKeys * sizeof(Element)];
};

// The memory layout of a consumer's accumulators of dQ, in register order: no bank conflicts, and
// one bulk copy. attention_backward_dq.cu reads them with the same threads.
struct alignas(16) Quad {
    float values[4];
};
constexpr int kDqQuads = kDqAccumulators / 4;
struct alignas(1024) DqPart {
    Quad quads[kDqQuads][128];
};
static_assert(
    sizeof(DqPart) * kConsumers == sizeof(float) * BLOCK_M * HEAD_DIM, "a share of a tile each"
);

// One value per row of a tile: its log-sum-exp, as an exponent of 2, or its sum of dO * O. Rows are
// columns of the transposed scores. With quads, a thread's four of each sixteen rows are adjacent,
// so that it reads them at once. That is 2 to 3 % faster with 128 columns and 2 to 4 % slower with
// 64 (bench_attention_backward.py on an H200, 2026-11-23).
struct alignas(16) RowValues {
    static constexpr bool kInQuads = HEAD_DIM == 128;
    float values[BLOCK_M];

    // The index of a row's value.
    __device__ __forceinline__ static int index(int row) {
        if (!kInQuads) return row;
        return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
    }
};
struct RowStatistics {
    RowValues lse;
    RowValues delta;
};

// The workspace of a tile of queries.
struct DqTile {
    DqPart parts[kConsumers];
};

}  // namespace tmaasync::kernels::attention_backward
