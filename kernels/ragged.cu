// Packs the sequences of a padded batch one after the other, or spreads them out again. TMA clips
// every sequence at its end, so that no row is looked at. Short-lived blocks of a few tiles, as in
// copy.cu; the grid follows from the arrays' shapes alone, so that the lengths may be known to the
// device only.
//
//   Packed       RaggedTensorMap of the packed array: (rows, ...)
//   Padded       TMATensorTile of the padded array: (batch, rows, ...), a tile of one sequence
//   STAGES       buffers in the ring
//   LOADS_AHEAD  loads in flight; the other stages are being stored
//   TILES        tiles of a block, one below the other
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

static_assert(0 < LOADS_AHEAD && LOADS_AHEAD <= STAGES, "loads fill the ring at most");
static_assert(Padded::kBytes == Packed::kBytes, "either side moves the same tile");

constexpr int kRank = Packed::kRank;
constexpr i32 kBlockRows = TILES * Packed::kRows;

struct Ring {
    typename Packed::Shared tiles[STAGES];
    SharedMemBarrier full[STAGES];
};

using RingPlace = PipelineState<STAGES>;

extern "C" __device__ const int ragged_store_shared_bytes = sizeof(Ring);
extern "C" __device__ const int ragged_load_shared_bytes = sizeof(Ring);

// How many tiles lie side by side along each dimension of a row, innermost first; 1 beyond.
struct Columns {
    u32 tiles[3];
};

// --- which rows, which columns -----------------------------------------------------------------

// Where the block's tiles start in row 0. Neighbouring blocks lie side by side; what is left of the
// index counts blocks of rows.
__device__ Coordinates<kRank> take_columns(u32& index, const Columns& columns) {
    Coordinates<kRank> at;
#pragma unroll
    for (int dim = 0; dim < kRank - 1; ++dim) {
        at.values[dim] =
            static_cast<i32>(index % columns.tiles[dim]) * Packed::side(kRank - 1 - dim);
        index /= columns.tiles[dim];
    }
    return at;
}

// A sequence longer than the padded array's rows is cut there.
__device__ RaggedSequence sequence_of(const Packed& packed, const i32* cu_seqlens, i32 index) {
    auto sequence = RaggedSequence::of(cu_seqlens, index);
    check_range("sequence.length", sequence.length, 0, packed.max_length);
    sequence.length = min(sequence.length, packed.max_length);
    return sequence;
}

// The blocks of rows of sequence i are numbered from here on. As many numbers as its rows may need
// lie between it and the next, whatever the lengths, and nothing has to be added up.
__device__ i32 first_block(const i32* cu_seqlens, i32 index) {
    return cu_seqlens[index] / kBlockRows + index;
}

// The sequence to which a block of rows belongs: the last that starts at or before it. All lanes
// probe at once, so that a thousand sequences take two steps.
__device__ i32 sequence_of_block(const i32* cu_seqlens, i32 batch, i32 block) {
    i32 low = 0, count = batch;
    while (count > 1) {
        const i32 step = (count + 31) / 32;
        const i32 probe = low + static_cast<i32>(lane_index()) * step;
        const bool starts = probe < low + count && first_block(cu_seqlens, probe) <= block;
        const i32 skipped = (__popc(__ballot_sync(0xffffffff, starts)) - 1) * step;
        low += skipped;
        count = min(step, count - skipped);
    }
    return low;
}

// --- rows --------------------------------------------------------------------------------------

__device__ Coordinates<kRank> in_packed(Coordinates<kRank> at, i32 row) {
    at.values[kRank - 1] = row;
    return at;
}

__device__ Coordinates<kRank + 1> in_padded(const Coordinates<kRank>& at, i32 sequence, i32 row) {
    Coordinates<kRank + 1> place;
#pragma unroll
    for (int dim = 0; dim < kRank - 1; ++dim) place.values[dim] = at.values[dim];
    place.values[kRank - 1] = row;
    place.values[kRank] = sequence;
    return place;
}

// Rows [row, end) of one sequence: load(tile, full, row) and store(tile, row) move a tile. Both
// sides of the ring are TMA, so no proxy fence is needed and the bulk groups stand in for empty
// barriers.
template <typename Load, typename Store>
__device__ void copy_rows(Ring& ring, i32 row, i32 end, Load load, Store store) {
    auto loaded = RingPlace::for_consumer();
    auto stored = RingPlace::for_consumer();
    i32 next = row;
    const auto load_next = [&] {
        auto& full = ring.full[loaded.index];
        full.expect_bytes(Packed::kBytes);
        load(ring.tiles[loaded.index], full, next);
        loaded.step();
        next += Packed::kRows;
    };

    for (int ahead = 0; ahead < LOADS_AHEAD && next < end; ++ahead) load_next();
    for (; row < end; row += Packed::kRows, stored.step()) {
        ring.full[stored.index].wait(stored.phase);
        store(ring.tiles[stored.index], row);
        commit_group();
        if (next < end) {
            // The stage about to be loaded was stored STAGES - LOADS_AHEAD stores ago.
            wait_group_read<STAGES - LOADS_AHEAD>();
            load_next();
        }
    }
    wait_group_read<0>();
}

__device__ void open_ring(Ring& ring) {
    for (auto& full : ring.full) full.init(1);
    fence_barrier_init();
}

// --- entries -----------------------------------------------------------------------------------

// Padded to packed. The grid has a block of rows for every kBlockRows rows of the packed array and
// one more for every sequence, each as often as there are columns.
extern "C" __global__ void __launch_bounds__(32) ragged_store(
    const __grid_constant__ Packed packed,
    const __grid_constant__ Padded padded,
    const i32* cu_seqlens,
    i32 batch,
    const Columns columns
) {
    u32 block = blockIdx.x;
    const auto at = take_columns(block, columns);
    const i32 index = sequence_of_block(cu_seqlens, batch, block);
    const auto sequence = sequence_of(packed, cu_seqlens, index);
    const i32 row = (static_cast<i32>(block) - first_block(cu_seqlens, index)) * kBlockRows;
    if (row >= sequence.length || !elect()) return;

    auto& ring = dynamic_shared<Ring>();
    open_ring(ring);
    copy_rows(
        ring, row, min(row + kBlockRows, sequence.length),
        [&](auto& tile, auto& full, i32 next) {
            padded.async_copy(tile, full, in_padded(at, index, next));
        },
        [&](const auto& tile, i32 now) { packed.async_store(tile, sequence, in_packed(at, now)); }
    );
}

// Packed to padded, zeros behind every sequence. The grid has the blocks of rows that cover one
// sequence of the padded array, for every sequence, each as often as there are columns.
extern "C" __global__ void __launch_bounds__(32) ragged_load(
    const __grid_constant__ Packed packed,
    const __grid_constant__ Padded padded,
    const i32* cu_seqlens,
    i32 batch,
    const Columns columns
) {
    if (!elect()) return;
    const u32 blocks_each = (packed.max_length + kBlockRows - 1) / kBlockRows;
    u32 block = blockIdx.x;
    const auto at = take_columns(block, columns);
    const i32 index = block / blocks_each;
    const i32 row = block % blocks_each * kBlockRows;
    const auto sequence = sequence_of(packed, cu_seqlens, index);

    auto& ring = dynamic_shared<Ring>();
    open_ring(ring);
    copy_rows(
        ring, row, min(row + kBlockRows, packed.max_length),
        [&](auto& tile, auto& full, i32 next) {
            packed.async_copy(tile, full, sequence, in_packed(at, next));
        },
        [&](const auto& tile, i32 now) { padded.async_store(tile, in_padded(at, index, now)); }
    );
}
