#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/swizzle.cuh>

// Operands of the tensor cores in shared memory, as the matrix descriptors of wgmma and tcgen05
// describe them.
namespace tmaasync {

// The type of the accumulators; of fp16 elements they may be fp16, too.
template <typename T>
struct AccumulatorOf {
    using Type = float;
};
template <>
struct AccumulatorOf<signed char> {
    using Type = int;
};
template <>
struct AccumulatorOf<unsigned char> {
    using Type = int;
};

// The side of an operand that is contiguous in shared memory: K, or M (of A) / N (of B).
enum class Major { kK, kMN };

// The descriptor of the same operand, this many bytes further on: a multiple of 16.
__device__ __forceinline__ constexpr u64 increase_descriptor_offset(u64 descriptor, u32 bytes) {
    return descriptor + (bytes >> 4);
}

// The start of an operand: of a tile in shared memory, or a shared address.
template <typename Shared>
__device__ __forceinline__ u32 operand_address(const Shared& shared) {
    return ptx::shared_address(shared.bytes);
}
__device__ __forceinline__ u32 operand_address(u32 shared) {
    return shared;
}

// An operand in shared memory, as TMA loads a matrix of kRows rows in boxes one span wide:
// [panels][rows][span], a panel being 128, 64 or 32 bytes of every row, 16 without swizzle.
//   Major::kK:  rows run along M or N, the columns are K.
//   Major::kMN: rows run along K, the columns are M or N.
// Its start lies at a multiple of alignment_bytes(kSwizzle). It may be wider and higher than the
// part that is multiplied: `first` counts from its first row of M or N.
template <typename T, Swizzle kSwizzleMode, Major kOperandMajor, int kRows, int kColumns>
struct OperandBuffer {
    using Element = T;
    static constexpr Swizzle kSwizzle = kSwizzleMode;
    static constexpr Major kMajor = kOperandMajor;
    static constexpr int kElementBytes = static_cast<int>(sizeof(T));
    static constexpr int kSpan = span_bytes(kSwizzle);
    static constexpr int kSpanElements = kSpan / kElementBytes;
    static constexpr u32 kPanelBytes = kRows * kSpan;
    static constexpr int kInstructionK = 32 / kElementBytes;
    static constexpr int kDepth = kMajor == Major::kK ? kColumns : kRows;
    static constexpr int kExtent = kMajor == Major::kK ? kRows : kColumns;
    static constexpr int kSteps = kDepth / kInstructionK;

    static_assert(kRows % 8 == 0 && kExtent % 8 == 0, "M, N and rows come in eights: pad the tile");

    // Swizzled rows of K need no leading distance. Without swizzle the two are exchanged for MN.
    static constexpr bool kStridesAreSwapped = kSwizzle == Swizzle::kNone && kMajor == Major::kMN;
    static constexpr int kGroupRows = kMajor == Major::kMN && kElementBytes == 4 ? 4 : 8;
    static constexpr u32 kBetweenGroups = kGroupRows * kSpan;
    static constexpr u32 kBetweenPanels =
        kSwizzle != Swizzle::kNone && kMajor == Major::kK ? 16 : kPanelBytes;
    static constexpr u32 kLeadingBytes = kStridesAreSwapped ? kBetweenGroups : kBetweenPanels;
    static constexpr u32 kStrideBytes = kStridesAreSwapped ? kBetweenPanels : kBetweenGroups;

    // Whether an instruction can read `count` rows of M or N from `first` on. With Major::kMN it
    // starts with a panel, or lies inside one.
    __device__ __forceinline__ static constexpr bool is_readable(u32 first, u32 count) {
        const u32 in_panel = first % kSpanElements;
        return kMajor == Major::kK || in_panel == 0 || in_panel + count <= kSpanElements;
    }

    // Shared address of the part that starts at this row of M or N, a multiple of 8.
    template <typename Shared>
    __device__ __forceinline__ static u32 start_address(const Shared& shared, u32 first) {
        static_assert(kDepth % kInstructionK == 0, "K is a multiple of 32 bytes: pad the tile");
        check_index("the first row or column of an operand", first, kExtent);
        check_multiple("the first row or column of an operand", first, 8);
        u32 start = first * kSpan;
        if constexpr (kMajor == Major::kMN) {
            start = first / kSpanElements * kPanelBytes + first % kSpanElements * kElementBytes;
        }
        return operand_address(shared) + start;
    }

    // The offset that the step-th instruction along K adds to the descriptor.
    __device__ __forceinline__ static constexpr u64 step_offset(int step) {
        if constexpr (kMajor == Major::kK) {
            return (step * 32 / kSpan * kPanelBytes + step * 32 % kSpan) >> 4;
        } else {
            return static_cast<u64>(step) * kInstructionK * kSpan >> 4;
        }
    }

    // The offset of an element, in bytes from the start.
    __device__ __forceinline__ static constexpr u32 offset_bytes(u32 row_of_mn, u32 k) {
        const u32 row = kMajor == Major::kK ? row_of_mn : k;
        const u32 column = (kMajor == Major::kK ? k : row_of_mn) * kElementBytes;
        return swizzled<kSwizzle>(column / kSpan * kPanelBytes + row * kSpan + column % kSpan);
    }
};

template <typename Tile>
__device__ constexpr int rows_in_shared() {
    int rows = 1;
    for (int dim = 0; dim < Tile::kRank - 1; ++dim) {
        rows *= Tile::boxes(dim) * Tile::box_side(dim);
    }
    return rows;
}

// True if the rows of all boxes follow one another: a side may be cut if a box has one of each side
// before it.
template <typename Tile>
__device__ constexpr bool has_rows_in_order() {
    int before = 1;
    for (int dim = 0; dim < Tile::kRank - 1; ++dim) {
        if (Tile::boxes(dim) > 1 && before > 1) return false;
        before *= Tile::box_side(dim);
    }
    return true;
}

// The operand that a tile loads, as `Buffer` reads it. If the tile has more than two sides, all but
// the last make up the rows.
template <
    template <typename, Swizzle, Major, int, int> class Buffer,
    typename Tile,
    Major kOperandMajor>
struct TileOperand : Buffer<
                         typename Tile::Element,
                         Tile::kSwizzle,
                         kOperandMajor,
                         rows_in_shared<Tile>(),
                         Tile::side(Tile::kRank - 1)> {
    static_assert(
        Tile::box_side(Tile::kRank - 1) ==
            span_bytes(Tile::kSwizzle) / static_cast<int>(sizeof(typename Tile::Element)),
        "a box is one span wide, 16 bytes without swizzle: make the tile with create_tensor_tile"
    );
    static_assert(
        has_rows_in_order<Tile>(),
        "boxes are cut along the last side, and one that has only sides of 1 before it in a box"
    );
};

}  // namespace tmaasync
