#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/operands/wgmma_forms.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/swizzle.cuh>
#include <tmaasync/types.cuh>

namespace tmaasync {

using ptx::MmaType;

// The side of an operand that is contiguous in shared memory: K, or M (of A) / N (of B).
enum class Major { kK, kMN };

// The type as which the tensor cores read an element. They ignore the low 13 bits of a float.
template <typename T>
struct MmaTypeOf;
template <>
struct MmaTypeOf<float16> {
    static constexpr MmaType kType = MmaType::kF16;
};
template <>
struct MmaTypeOf<bfloat16> {
    static constexpr MmaType kType = MmaType::kBF16;
};
template <>
struct MmaTypeOf<tfloat32> {
    static constexpr MmaType kType = MmaType::kTF32;
};
template <>
struct MmaTypeOf<float> {
    static constexpr MmaType kType = MmaType::kTF32;
};
template <>
struct MmaTypeOf<float8_e4m3> {
    static constexpr MmaType kType = MmaType::kE4M3;
};
template <>
struct MmaTypeOf<float8_e5m2> {
    static constexpr MmaType kType = MmaType::kE5M2;
};
template <>
struct MmaTypeOf<signed char> {
    static constexpr MmaType kType = MmaType::kS8;
};
template <>
struct MmaTypeOf<unsigned char> {
    static constexpr MmaType kType = MmaType::kU8;
};

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

// --- descriptors ---------------------------------------------------------------------------------

// The 64 bits by which wgmma reads an operand tile from shared memory. PTX ISA: "matrix
// descriptor". `leading_bytes` separates swizzle atoms along the leading side, `stride_bytes`
// groups of 8 rows.
template <Swizzle kSwizzle>
__device__ __forceinline__ u64
initialize_wgmma_descriptor(u32 shared, u32 leading_bytes, u32 stride_bytes) {
    constexpr u64 kLayout = kSwizzle == Swizzle::kNone ? 0 : 4 - static_cast<int>(kSwizzle);
    return kLayout << 62 | static_cast<u64>(stride_bytes >> 4) << 32 |
           static_cast<u64>(leading_bytes >> 4) << 16 | (shared & 0x3ffff) >> 4;
}

// The descriptor of the same operand, this many bytes further on: a multiple of 16.
__device__ __forceinline__ constexpr u64 increase_descriptor_offset(u64 descriptor, u32 bytes) {
    return descriptor + (bytes >> 4);
}

// --- operands ------------------------------------------------------------------------------------

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
//   Major::kMN: rows run along K, the columns are M or N; bf16 and fp16 only.
// Its start lies at a multiple of alignment_bytes(kSwizzle). It may be wider and higher than the
// part that is multiplied: `first` counts from its first row of M or N.
template <typename T, Swizzle kSwizzle, Major kOperandMajor, int kRows, int kColumns>
struct WgmmaBuffer {
    using Element = T;
    static constexpr Major kMajor = kOperandMajor;
    static constexpr int kElementBytes = static_cast<int>(sizeof(T));
    static constexpr int kSpan = span_bytes(kSwizzle);
    static constexpr int kSpanElements = kSpan / kElementBytes;
    static constexpr u32 kPanelBytes = kRows * kSpan;
    static constexpr int kInstructionK = 32 / kElementBytes;
    static constexpr int kDepth = kMajor == Major::kK ? kColumns : kRows;
    static constexpr int kExtent = kMajor == Major::kK ? kRows : kColumns;
    static constexpr int kSteps = kDepth / kInstructionK;

    static_assert(
        kMajor == Major::kK || kElementBytes == 2,
        "only bf16 and fp16 operands may have M or N contiguous: load the others K-major"
    );
    static_assert(kRows % 8 == 0 && kExtent % 8 == 0, "M, N and rows come in eights: pad the tile");

    // Swizzled rows of K need no leading distance. Without swizzle the two are exchanged for MN.
    static constexpr bool kStridesAreSwapped = kSwizzle == Swizzle::kNone && kMajor == Major::kMN;
    static constexpr u32 kBetweenGroups = 8 * kSpan;
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

    // Descriptor of the part that starts at this row of M or N, a multiple of 8: see is_readable().
    template <typename Shared>
    __device__ __forceinline__ static u64 descriptor(const Shared& shared, u32 first) {
        static_assert(kDepth % kInstructionK == 0, "K is a multiple of 32 bytes: pad the tile");
        check_index("the first row or column of an operand", first, kExtent);
        check_multiple("the first row or column of an operand", first, 8);
        u32 start = first * kSpan;
        if constexpr (kMajor == Major::kMN) {
            start = first / kSpanElements * kPanelBytes + first % kSpanElements * kElementBytes;
        }
        return initialize_wgmma_descriptor<kSwizzle>(
            operand_address(shared) + start, kLeadingBytes, kStrideBytes
        );
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

// The operand that a tile loads. If the tile has more than two sides, all but the last make up the
// rows.
template <typename Tile, Major kOperandMajor>
struct WgmmaOperand : WgmmaBuffer<
                          typename Tile::Element,
                          Tile::kSwizzle,
                          kOperandMajor,
                          rows_in_shared<Tile>(),
                          Tile::side(Tile::kRank - 1)> {
    using Buffer = WgmmaBuffer<
        typename Tile::Element,
        Tile::kSwizzle,
        kOperandMajor,
        rows_in_shared<Tile>(),
        Tile::side(Tile::kRank - 1)>;
    static_assert(
        Tile::box_side(Tile::kRank - 1) == Buffer::kSpanElements,
        "a box is one span wide, 16 bytes without swizzle: make the tile with create_tensor_tile"
    );
    static_assert(
        has_rows_in_order<Tile>(),
        "boxes are cut along the last side, and one that has only sides of 1 before it in a box"
    );
};

}  // namespace tmaasync
