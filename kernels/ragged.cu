// Packs the sequences of a padded batch one after the other (ragged_store), or unpacks them
// (ragged_load). TMA clips every sequence at its end, so that no thread tests a row. Short-lived
// blocks of a few tiles, as in copy.cu. The grid follows from the arrays' shapes alone, so that
// only the device has to know the lengths.
//
//   Packed         RaggedTensorMap of the packed array: (rows, ...)
//   Padded         TMATensorTile of the padded array: (batch, rows, ...), a tile of one sequence
//   STAGES         pipeline stages
//   LOADS_AHEAD    loads in flight; the other stages are being stored
//   TILES          tiles of a block, along the rows
//   PADDING_TILES  tiles of a block that writes padding, along the rows
//
// `broken_sequence` gets the number, counted from 1, of a sequence that is cut or left out.
#include <tmaasync/structured/store_ring.cuh>
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

static_assert(Padded::kBytes == Packed::kBytes, "loads and stores move the same tile");

constexpr int kRank = Packed::kRank;
constexpr i32 kBlockRows = TILES * Packed::kRows;
constexpr i32 kPaddingRows = PADDING_TILES * Packed::kRows;

// A padded tile has boxes along its rows alone, so that the last tile of a sequence is not loaded
// beyond the box in which the sequence ends. In shared memory they lie one after the other, as in a
// packed tile's one box.
constexpr i32 kBoxRows = Padded::box_side(1);
static_assert(Padded::kBoxes * kBoxRows == Packed::kRows, "boxes divide the rows of a tile");

__device__ i32 boxes_with_rows(i32 rows) {
    return min(Padded::kBoxes, (rows + kBoxRows - 1) / kBoxRows);
}

template <typename Shared>
__device__ auto& as_padded(Shared& packed) {
    using Tile = typename Padded::Shared;
    if constexpr (kSameType<Shared, const typename Packed::Shared>) {
        return reinterpret_cast<const Tile&>(packed);
    } else {
        return reinterpret_cast<Tile&>(packed);
    }
}

struct SharedMemory {
    StoreRing<typename Packed::Shared, STAGES, LOADS_AHEAD> ring;
};

extern "C" __device__ const int ragged_store_shared_bytes = sizeof(SharedMemory);
extern "C" __device__ const int ragged_load_shared_bytes = sizeof(SharedMemory);

// Tiles along each dimension of a row, innermost first; 1 beyond. A parameter that the host packs.
struct Columns {
    u32 tiles[3];
};
static_assert(sizeof(Columns) == 12);

// Where the block's tiles start in row 0. Neighbouring blocks have neighbouring columns. The rest
// of the index is left in `index`: it counts blocks of rows.
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

__device__ Coordinates<kRank> in_packed(Coordinates<kRank> at, i32 row) {
    at.values[kRank - 1] = row;
    return at;
}

__device__ Coordinates<kRank + 1> in_padded(const Coordinates<kRank>& at, i32 sequence, i32 row) {
    Coordinates<kRank + 1> padded;
#pragma unroll
    for (int dim = 0; dim < kRank - 1; ++dim) padded.values[dim] = at.values[dim];
    padded.values[kRank - 1] = row;
    padded.values[kRank] = sequence;
    return padded;
}

// A batch of sequences in the packed array, and in the padded one.
struct Batch {
    const Packed& packed;
    const Padded& padded;
    const i32* cu_seqlens;
    i32 size;
    i32 total_rows;

    // A sequence longer than the padded array's rows is cut there. One that starts or ends outside
    // the packed array gets no rows.
    __device__ RaggedSequence sequence(i32 index) const {
        auto sequence = RaggedSequence::of(cu_seqlens, index);
        check_range("sequence.length", sequence.length, 0, packed.max_length);
        sequence.length = min(sequence.length, packed.max_length);
        if (!sequence.is_within(packed.max_length, total_rows)) return {0, 0};
        return sequence;
    }

    // Write the number, counted from 1, of a sequence that is cut or outside the packed array. Each
    // of the first blocks of the grid checks 32 sequences.
    __device__ void report(i32* broken_sequence) const {
        const i64 index = i64{blockIdx.x} * 32 + lane_index();
        if (index >= size) return;
        const auto rows = RaggedSequence::of(cu_seqlens, static_cast<i32>(index));
        if (rows.is_within(packed.max_length, total_rows)) return;
        atomicExch(broken_sequence, static_cast<i32>(index) + 1);
    }

    // The number of a sequence's first block of rows: first_tile_number for any cumulative lengths.
    __device__ i64 first_block(i32 index) const {
        return static_cast<i64>(cu_seqlens[index] / kBlockRows) + index;
    }

    __device__ u32 blocks() const { return total_rows / kBlockRows + size; }

    // The sequence of a block of rows: the last that starts at or before it. A 32-ary search: all
    // lanes probe at once, so that a thousand sequences take two steps.
    __device__ i32 sequence_of_block(i32 block) const {
        i32 low = 0, count = size;
        while (count > 1) {
            const i32 step = (count + 31) / 32;
            const i32 probe = low + static_cast<i32>(lane_index()) * step;
            const bool starts = probe < low + count && first_block(probe) <= block;
            const i32 started = __popc(__ballot_sync(0xffffffff, starts));
            const i32 skipped = max(started - 1, 0) * step;  // wrong lengths may start beyond it
            low += skipped;
            count = min(step, count - skipped);
        }
        return low;
    }

    // Copy a block of rows of one sequence: to the packed array or from it. A block whose number
    // lies before or beyond its sequence has no rows.
    template <bool kPacks>
    __device__ void copy_rows(const Coordinates<kRank>& at, i32 block) const {
        const i32 index = sequence_of_block(block);
        const auto rows = sequence(index);
        const i64 wanted = (block - first_block(index)) * kBlockRows;
        if (wanted < 0 || wanted >= rows.length || !elect()) return;
        const i32 first = static_cast<i32>(wanted);
        const i32 end = first + min(kBlockRows, rows.length - first);
        auto& ring = dynamic_shared<SharedMemory>().ring;
        ring.init();
        const auto load = [&](const auto& stage, i32 row) {
            if constexpr (kPacks) {
                for (int box = 0; box < boxes_with_rows(rows.length - row); ++box) {
                    const auto start = in_padded(at, index, row + box * kBoxRows);
                    padded.async_copy_box(as_padded(*stage), stage.full(), start, box);
                }
            } else {
                packed.async_copy(*stage, stage.full(), rows, in_packed(at, row));
            }
        };
        const auto store = [&](const auto& tile, i32 row) {
            if constexpr (kPacks) {
                packed.async_store(tile, rows, in_packed(at, row));
            } else {
                padded.async_store(as_padded(tile), in_padded(at, index, row));
            }
        };
        const auto bytes = [&](i32 row) -> u32 {
            return kPacks ? boxes_with_rows(rows.length - row) * Padded::kBoxBytes : Packed::kBytes;
        };
        ring.transfers().run<Packed::kRows>(first, end, load, store, bytes);
    }

    // Store zeros after a sequence: the part of a padding block, by its number.
    __device__ void store_padding(const Coordinates<kRank>& at, u32 block) const {
        const u32 blocks_each = (packed.max_length + kPaddingRows - 1) / kPaddingRows;
        const i32 index = block / blocks_each;
        const i32 first = block % blocks_each * kPaddingRows;
        const i32 end = first + min(kPaddingRows, packed.max_length - first);
        const i32 length = sequence(index).length;
        i32 row = max(first, (length + Packed::kRows - 1) / Packed::kRows * Packed::kRows);
        if (row >= end) return;

        auto& zeros = dynamic_shared<SharedMemory>().ring.stages[0];
        for (u32 byte = lane_index() * 16; byte < Packed::kBytes; byte += 32 * 16) {
            *reinterpret_cast<uint4*>(zeros.bytes + byte) = uint4{0, 0, 0, 0};
        }
        fence_async_view_proxy();
        __syncwarp();
        if (!elect()) return;
        for (; row < end; row += Packed::kRows) {
            padded.async_store(as_padded(zeros), in_padded(at, index, row));
        }
        commit_group();
        wait_group_read<0>();
    }
};

// Packs. The grid has Batch::blocks() for each of the columns.
extern "C" __global__ void __launch_bounds__(32) ragged_store(
    const __grid_constant__ Packed packed,
    const __grid_constant__ Padded padded,
    const i32* cu_seqlens,
    i32 sequences,
    i32 total_rows,
    const Columns columns,
    i32* broken_sequence
) {
    const Batch batch{packed, padded, cu_seqlens, sequences, total_rows};
    batch.report(broken_sequence);
    u32 block = blockIdx.x;
    const auto at = take_columns(block, columns);
    batch.copy_rows<true>(at, block);
}

// Unpacks, with zeros after every sequence. The grid has Batch::blocks() for the rows, then for
// every sequence the blocks of kPaddingRows that cover it in the padded array; all of them for each
// of the columns. The zeros come last because DRAM that is only written is faster than DRAM that is
// read in between: 4 to 25 % in all on an H200.
extern "C" __global__ void __launch_bounds__(32) ragged_load(
    const __grid_constant__ Packed packed,
    const __grid_constant__ Padded padded,
    const i32* cu_seqlens,
    i32 sequences,
    i32 total_rows,
    const Columns columns,
    i32* broken_sequence
) {
    const Batch batch{packed, padded, cu_seqlens, sequences, total_rows};
    batch.report(broken_sequence);
    u32 block = blockIdx.x;
    const auto at = take_columns(block, columns);
    if (block < batch.blocks()) return batch.copy_rows<false>(at, block);
    batch.store_padding(at, block - batch.blocks());
}
