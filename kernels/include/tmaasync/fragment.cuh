#pragma once

#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/ldmatrix.cuh>
#include <tmaasync/ptx/stmatrix.cuh>
#include <tmaasync/types.cuh>
#include <tmaasync/wgmma_operand.cuh>

// Register fragments of wgmma: which of the 64 rows each thread of a warpgroup holds, of the
// accumulators, and of A if it is in registers. The host's twins are accumulator_fragment and
// a_fragment.
namespace tmaasync {

__device__ __forceinline__ int thread_in_warpgroup() {
    return static_cast<int>(threadIdx.x % 128);
}

// --- the accumulators ----------------------------------------------------------------------------

// Row and column of the i-th accumulator that a thread holds.
__device__ __forceinline__ constexpr int accumulator_row(int thread, int i) {
    return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
__device__ __forceinline__ constexpr int accumulator_column(int thread, int i) {
    return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

// The i-th accumulator itself; an fp16 one, of which a register holds two, as a float.
__device__ __forceinline__ float accumulator_value(const float* accumulators, int i) {
    return accumulators[i];
}
__device__ __forceinline__ int accumulator_value(const int* accumulators, int i) {
    return accumulators[i];
}
__device__ __forceinline__ float accumulator_value(const u32* accumulators, int i) {
    return __half2float(
        __ushort_as_half(static_cast<unsigned short>(accumulators[i / 2] >> i % 2 * 16))
    );
}

// Two neighbours in a row as 16-bit elements in one register, the first in its low half.
template <typename T>
__device__ __forceinline__ u32 pack_pair(float low, float high) {
    if constexpr (kSameType<T, bfloat16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return reinterpret_cast<const u32&>(pair);
    } else {
        static_assert(kSameType<T, float16>, "bf16 or fp16 elements");
        const __half2 pair = __floats2half2_rn(low, high);
        return reinterpret_cast<const u32&>(pair);
    }
}

// The two elements of a packed pair.
template <typename T>
__device__ __forceinline__ float2 unpack_pair(u32 pair) {
    if constexpr (kSameType<T, bfloat16>) {
        return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
    } else {
        static_assert(kSameType<T, float16>, "bf16 or fp16 elements");
        return __half22float2(reinterpret_cast<const __half2&>(pair));
    }
}

// Four 8-bit elements in one register, the first in its lowest byte. Values out of range become the
// greatest number.
template <typename T>
__device__ __forceinline__ u32 pack_four(float first, float second, float third, float fourth) {
    static_assert(kSameType<T, float8_e4m3> || kSameType<T, float8_e5m2>, "e4m3 or e5m2 elements");
    constexpr auto kKind = kSameType<T, float8_e4m3> ? __NV_E4M3 : __NV_E5M2;
    const u32 low = __nv_cvt_float2_to_fp8x2({first, second}, __NV_SATFINITE, kKind);
    const u32 high = __nv_cvt_float2_to_fp8x2({third, fourth}, __NV_SATFINITE, kKind);
    return low | high << 16;
}

// Accumulators 2 * i and 2 * i + 1 as a pair of T.
template <typename T>
__device__ __forceinline__ u32 accumulator_pair(const float* accumulators, int i) {
    return pack_pair<T>(accumulators[2 * i], accumulators[2 * i + 1]);
}
template <typename T>
__device__ __forceinline__ u32 accumulator_pair(const u32* accumulators, int i) {
    static_assert(kSameType<T, float16>, "fp16 accumulators stay fp16");
    return accumulators[i];
}

// --- A in registers ------------------------------------------------------------------------------

// Row, and byte along K, of the four bytes that register i of 4 holds for one step of 32 bytes.
__device__ __forceinline__ constexpr int a_fragment_row(int thread, int i) {
    return thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
}
__device__ __forceinline__ constexpr int a_fragment_byte(int thread, int i) {
    return thread % 4 * 4 + i / 2 * 16;
}

// Load A's registers for one step along K from an operand that lies in shared memory, 64 rows from
// `first` on, a multiple of 8. All four warps call this.
template <typename Operand, typename Shared>
__device__ __forceinline__ void load_a_fragment(
    u32 (&a)[4], const Shared& shared, u32 first, int step
) {
    const int lane = thread_in_warpgroup() % 32;
    const u32 warp_row = first + thread_in_warpgroup() / 32 * 16;
    const u32 k = step * Operand::kInstructionK;
    // Lane l names row l % 8 of the 8x8 matrix that register l / 8 of all lanes comes from: rows
    // 0 or 8 on, then bytes 0 or 16 on.
    const u32 half_row = lane / 8 % 2 * 8, half_k = lane / 16 * (Operand::kInstructionK / 2);
    const u32 base = operand_address(shared);
    if constexpr (Operand::kMajor == Major::kK) {
        const u32 row = warp_row + half_row + lane % 8;
        ptx::ldmatrix_x4(base + Operand::offset_bytes(row, k + half_k), a[0], a[1], a[2], a[3]);
    } else {
        const u32 at = Operand::offset_bytes(warp_row + half_row, k + half_k + lane % 8);
        ptx::ldmatrix_x4_trans(base + at, a[0], a[1], a[2], a[3]);
    }
}

// Load A's registers for whole atoms of 64 rows, all along K.
template <typename Operand, typename Shared, int kAtomsM, int kSteps>
__device__ __forceinline__ void load_a_fragments(
    u32 (&a)[kAtomsM][kSteps][4], const Shared& shared, u32 first = 0
) {
    static_assert(kSteps == Operand::kSteps, "four registers for each step along K");
#pragma unroll
    for (int atom = 0; atom < kAtomsM; ++atom) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            load_a_fragment<Operand>(a[atom][step], shared, first + atom * 64, step);
        }
    }
}

// Convert accumulators to the A of another GEMM, as P of attention. With 16-bit elements T, column
// c of the accumulators is k = c of A. With 8-bit elements, A's k run over the columns in the order
// of column_of_k, so that a thread has all four elements of a register; the k of B must have the
// same order.
template <typename T, int kSteps, typename Register, int kRegisters>
__device__ __forceinline__ void accumulators_to_a(
    u32 (&a)[kSteps][4], const Register (&accumulators)[kRegisters]
) {
    static_assert(
        kSteps * 32 == sizeof(T) * ptx::mma_columns<Register>(kRegisters),
        "32 bytes for each step along K"
    );
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
        if constexpr (sizeof(T) == 2) {
            a[i / 4][i % 4] = accumulator_pair<T>(accumulators, i);
        } else {
            static_assert(kSameType<Register, float>, "fp32 accumulators");
            // Two groups of eight columns, and of each two neighbours in row i % 2.
            const Register* eight = accumulators + i / 2 * 8 + i % 2 * 2;
            a[i / 4][i % 4] = pack_four<T>(eight[0], eight[1], eight[4], eight[5]);
        }
    }
}

// The column of the accumulators at k of 8-bit elements: a permutation of every sixteen.
__device__ __forceinline__ constexpr int column_of_k(int k) {
    return k / 16 * 16 + k % 4 / 2 * 8 + k % 16 / 4 * 2 + k % 2;
}

// --- accumulators to shared memory ---------------------------------------------------------------

// Write 64 rows and kColumns columns of accumulators to a tile as TMA stores it,
// [panels][rows][span], from this row and column on, multiples of 8. 16-bit elements are converted
// and written by stmatrix, 32-bit elements as they are. `Buffer` is a WgmmaBuffer or WgmmaOperand
// with Major::kK. Readers of the async proxy need fence_async_view_proxy() after it.
template <typename Buffer, int kColumns, typename Register, typename Shared>
__device__ __forceinline__ void store_accumulators(
    Shared& shared, const Register* accumulators, u32 first_row = 0, u32 first_column = 0
) {
    using T = typename Buffer::Element;
    static_assert(Buffer::kMajor == Major::kK, "rows of the tile are rows of the accumulators");
    static_assert(kColumns % 8 == 0, "columns come in eights");
    static_assert(
        kColumns <= Buffer::kDepth && Buffer::kExtent >= 64,
        "the tile is smaller than 64 x kColumns"
    );
    check_range("first_row", first_row, 0, Buffer::kExtent - 64);
    check_multiple("first_row", first_row, 8);
    check_range("first_column", first_column, 0, Buffer::kDepth - kColumns);
    check_multiple("first_column", first_column, 8);
    const u32 base = operand_address(shared);
    const int thread = thread_in_warpgroup();
    if constexpr (sizeof(T) == 2) {
        const int lane = thread % 32;
        const u32 row = first_row + thread / 32 * 16 + lane % 16;
#pragma unroll
        for (int column = 0; column + 16 <= kColumns; column += 16) {
            const int pair = column / 4;
            ptx::stmatrix_x4(
                base + Buffer::offset_bytes(row, first_column + column + lane / 16 * 8),
                accumulator_pair<T>(accumulators, pair),
                accumulator_pair<T>(accumulators, pair + 1),
                accumulator_pair<T>(accumulators, pair + 2),
                accumulator_pair<T>(accumulators, pair + 3)
            );
        }
        if constexpr (kColumns % 16 == 8) {
            constexpr int kPair = (kColumns - 8) / 4;
            ptx::stmatrix_x2(
                base + Buffer::offset_bytes(row, first_column + kColumns - 8),
                accumulator_pair<T>(accumulators, kPair),
                accumulator_pair<T>(accumulators, kPair + 1)
            );
        }
    } else {
        static_assert(kSameType<T, Register>, "32-bit elements are stored without conversion");
        struct alignas(8) Pair {
            Register values[2];
        };
#pragma unroll
        for (int i = 0; i < kColumns / 2; i += 2) {
            const u32 row = first_row + accumulator_row(thread, i);
            const u32 column = first_column + accumulator_column(thread, i);
            auto* pair = reinterpret_cast<Pair*>(shared.bytes + Buffer::offset_bytes(row, column));
            *pair = {accumulators[i], accumulators[i + 1]};
        }
    }
}

// Write A's registers, 64 rows of 16-bit elements, transposed to a tile as TMA stores it: k of A is
// row first_row + k of the tile, and row r its column first_column + r. `Buffer` is as above.
template <typename Buffer, int kSteps, typename Shared>
__device__ __forceinline__ void store_a_transposed(
    Shared& shared, const u32 (&a)[kSteps][4], u32 first_row = 0, u32 first_column = 0
) {
    static_assert(Buffer::kMajor == Major::kK, "rows of the tile are K of A");
    static_assert(sizeof(typename Buffer::Element) == 2, "stmatrix transposes 16-bit elements");
    const int thread = thread_in_warpgroup(), lane = thread % 32;
    const u32 row = first_row + lane / 16 * 8 + lane % 8;
    const u32 column = first_column + thread / 32 * 16 + lane / 8 % 2 * 8;
    // Sixteen rows further on the swizzle is the same: one address, with constant offsets.
    const u32 first = operand_address(shared) + Buffer::offset_bytes(row, column);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        ptx::stmatrix_x4_trans(
            first + step * 16 * Buffer::kSpan, a[step][0], a[step][1], a[step][2], a[step][3]
        );
    }
}

}  // namespace tmaasync
