#pragma once

#include <tmaasync/bulk_group.cuh>
#include <tmaasync/fragment.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/warp.cuh>

namespace tmaasync {

// The side of the output that is contiguous in memory: its columns (N), or its rows (M).
enum class OutputMajor { kN, kM };

// A chunk of the output as TMA stores it: 64 rows by the columns of the tile CTile. Its lines
// follow the output's memory order: rows, or columns if M is contiguous. In a batch, the tile has a
// side of 1 before the two sides of its matrix.
template <typename CTile, OutputMajor kOutputMajor>
struct OutputChunk {
    using Element = typename CTile::Element;
    using Shared = typename CTile::Shared;
    static constexpr OutputMajor kMajor = kOutputMajor;
    static constexpr bool kIsNMajor = kMajor == OutputMajor::kN;
    static constexpr int kOuterDim = CTile::kRank - 2;
    static constexpr int kInnerDim = CTile::kRank - 1;
    static constexpr int kRows = 64;
    static constexpr int kColumns = CTile::side(kIsNMajor ? kInnerDim : kOuterDim);
    static constexpr int kLineBytes =
        CTile::box_side(kInnerDim) * static_cast<int>(sizeof(Element));
    static constexpr bool kIs16Bit = sizeof(Element) == 2;

    static_assert(kIs16Bit || sizeof(Element) == 4, "elements of the output have 16 or 32 bits");
    static_assert(
        CTile::side(kIsNMajor ? kOuterDim : kInnerDim) == kRows,
        "a chunk has the 64 rows of one instruction"
    );
    static_assert(
        kLineBytes == span_bytes(CTile::kSwizzle) && kLineBytes >= 32,
        "a line of a box has the width of the swizzle: 128, 64 or 32 bytes"
    );
    static_assert(kColumns % 8 == 0, "columns come in eights");
    static_assert(
        !kIsNMajor || CTile::side(kInnerDim) == CTile::box_side(kInnerDim),
        "if N is contiguous, a chunk is one box wide"
    );
    static_assert(
        kIsNMajor || kIs16Bit || CTile::side(kOuterDim) == CTile::box_side(kOuterDim),
        "if M is contiguous, a chunk of 32-bit elements has the columns of one box"
    );

    __device__ __forceinline__ static u32 offset(int line, int byte) {
        return swizzled<CTile::kSwizzle>(line * kLineBytes + byte);
    }

    // The shared address of a unit (16 bytes) of a line.
    __device__ __forceinline__ static u32 unit_address(const Shared& chunk, int line, int unit) {
        return ptx::shared_address(chunk.bytes) + offset(line, unit * 16);
    }

    // Write a chunk's accumulators, rounded to Element. Called by all four warps. If N is
    // contiguous, the rows are rotated: row `first` becomes the first row.
    template <typename Register>
    __device__ __forceinline__ static void write(
        Shared& chunk, const Register (&accumulators)[kColumns / 2], int first = 0
    ) {
        static_assert(
            kIs16Bit || kSameType<Element, Register>, "32-bit accumulators are stored as they are"
        );
        if constexpr (kIsNMajor && kIs16Bit) {
            write_rows_16bit(chunk, accumulators, first);
        } else if constexpr (kIsNMajor) {
            write_rows_32bit(chunk, accumulators, first);
        } else if constexpr (kIs16Bit) {
            write_columns_16bit(chunk, accumulators);
        } else {
            write_columns_32bit(chunk, accumulators);
        }
    }

    // Call visit(i, low, high) with the chunk's elements at accumulators i and i + 1, as floats:
    // the inverse of write().
    template <typename Visit>
    __device__ __forceinline__ static void read(
        const Shared& chunk, const Visit& visit, int first = 0
    ) {
        if constexpr (kIsNMajor && kIs16Bit) {
            read_rows_16bit(chunk, visit, first);
        } else if constexpr (kIsNMajor) {
            read_rows_32bit(chunk, visit, first);
        } else if constexpr (kIs16Bit) {
            read_columns_16bit(chunk, visit);
        } else {
            read_columns_32bit(chunk, visit);
        }
    }

private:
    __device__ __forceinline__ static int rotated(int row, int first) {
        return (row - first) & (kRows - 1);
    }

    // stmatrix stores four 8x8 matrices. A lane passes the address of one row of one matrix.
    __device__ __forceinline__ static void write_rows_16bit(
        Shared& chunk, const float* s, int first
    ) {
        const int lane = lane_index();
        const int row = rotated(threadIdx.x % 128 / 32 * 16 + lane % 16, first);
#pragma unroll
        for (int unit = 0; unit < kLineBytes / 16; unit += 2, s += 8) {
            ptx::stmatrix_x4(
                unit_address(chunk, row, unit + lane / 16), accumulator_pair<Element>(s, 0),
                accumulator_pair<Element>(s, 1), accumulator_pair<Element>(s, 2),
                accumulator_pair<Element>(s, 3)
            );
        }
    }

    // A lane holds two adjacent columns of rows lane / 4 and lane / 4 + 8.
    template <typename Register>
    __device__ __forceinline__ static void write_rows_32bit(
        Shared& chunk, const Register* s, int first
    ) {
        struct alignas(8) Pair {
            Register low, high;
        };
        const int lane = lane_index();
        const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
        for (int eight = 0; eight < kColumns / 8; ++eight, s += 4) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 at = offset(rotated(row + 8 * half, first), eight * 32 + lane % 4 * 8);
                *reinterpret_cast<Pair*>(chunk.bytes + at) = {s[2 * half], s[2 * half + 1]};
            }
        }
    }

    // Lines of the chunk are columns, so stmatrix transposes the two matrices of a warp.
    __device__ __forceinline__ static void write_columns_16bit(Shared& chunk, const float* s) {
        const int lane = lane_index();
        const int unit = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
#pragma unroll
        for (int column = 0; column < kColumns; column += 8, s += 4) {
            ptx::stmatrix_x2_trans(
                unit_address(chunk, column + lane % 8, unit), accumulator_pair<Element>(s, 0),
                accumulator_pair<Element>(s, 1)
            );
        }
    }

    // A line has 32 rows; the other 32 rows are in the second box.
    template <typename Register>
    __device__ __forceinline__ static void write_columns_32bit(Shared& chunk, const Register* s) {
        const int lane = lane_index();
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) {
            const int row = threadIdx.x % 128 / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
            const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const u32 at = row / 32 * CTile::kBoxBytes + offset(column, row % 32 * 4);
            *reinterpret_cast<Register*>(chunk.bytes + at) = s[i];
        }
    }

    // Each lane reads where it writes in write_rows_16bit. The same holds for the other layouts.
    template <typename Visit>
    __device__ __forceinline__ static void read_rows_16bit(
        const Shared& chunk, const Visit& visit, int first
    ) {
        const int lane = lane_index();
        const int row = rotated(threadIdx.x % 128 / 32 * 16 + lane % 16, first);
#pragma unroll
        for (int unit = 0; unit < kLineBytes / 16; unit += 2) {
            u32 pairs[4];
            ptx::ldmatrix_x4(
                unit_address(chunk, row, unit + lane / 16), pairs[0], pairs[1], pairs[2], pairs[3]
            );
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 pair = unpack_pair<Element>(pairs[i]);
                visit(unit * 4 + 2 * i, pair.x, pair.y);
            }
        }
    }

    template <typename Visit>
    __device__ __forceinline__ static void read_rows_32bit(
        const Shared& chunk, const Visit& visit, int first
    ) {
#pragma unroll
        for (int i = 0; i < kColumns / 2; i += 2) {
            const int row = rotated(accumulator_row(thread_in_warpgroup(), i), first);
            const int column = accumulator_column(thread_in_warpgroup(), i);
            const u32 at = offset(row, column * 4);
            const float2 pair = *reinterpret_cast<const float2*>(chunk.bytes + at);
            visit(i, pair.x, pair.y);
        }
    }

    template <typename Visit>
    __device__ __forceinline__ static void read_columns_16bit(
        const Shared& chunk, const Visit& visit
    ) {
        const int lane = lane_index();
        const int unit = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
#pragma unroll
        for (int column = 0; column < kColumns; column += 8) {
            u32 pairs[2];
            ptx::ldmatrix_x2_trans(
                unit_address(chunk, column + lane % 8, unit), pairs[0], pairs[1]
            );
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 pair = unpack_pair<Element>(pairs[i]);
                visit(column / 2 + 2 * i, pair.x, pair.y);
            }
        }
    }

    template <typename Visit>
    __device__ __forceinline__ static void read_columns_32bit(
        const Shared& chunk, const Visit& visit
    ) {
        const auto element = [&](int i) {
            const int row = accumulator_row(thread_in_warpgroup(), i);
            const int column = accumulator_column(thread_in_warpgroup(), i);
            const u32 at = row / 32 * CTile::kBoxBytes + offset(column, row % 32 * 4);
            return *reinterpret_cast<const float*>(chunk.bytes + at);
        };
#pragma unroll
        for (int i = 0; i < kColumns / 2; i += 2) visit(i, element(i), element(i + 1));
    }
};

}  // namespace tmaasync
