#pragma once

#include <tmaasync/fragment.cuh>
#include <tmaasync/operands/target.cuh>
#include <tmaasync/ptx/cvt.cuh>
#include <tmaasync/ptx/ldmatrix.cuh>
#include <tmaasync/ptx/mma_m16n8.cuh>
#include <tmaasync/warp.cuh>
#include <tmaasync/wgmma_operand.cuh>

// The multiplications of wgmma, on chips without it: each of the four warps of a warpgroup
// multiplies 16 of the 64 rows with mma.sync. A thread has the same elements of A and accumulators.
namespace tmaasync {

// The shared address in a descriptor.
__device__ __forceinline__ u32 descriptor_address(u64 descriptor) {
    return static_cast<u32>(descriptor & 0x3fff) << 4;
}

// An operand as 8 x 8 matrices for ldmatrix (of 16-bit elements; of others, 8 rows of 16 bytes of
// K). A lane gives the address of one row of 16 bytes: of M or N if K is contiguous, else of K.
template <typename Operand>
class WarpOperand {
public:
    // `start` is the address of the first row of M or N of an instruction.
    __device__ __forceinline__ explicit WarpOperand(u32 start)
        : line_(start + lane_index() % 8 * Operand::kSpan),
          exchange_(swizzled<Operand::kSwizzle>(line_) ^ line_) {}

    // Load the 16 x 32 bytes of A from this row of M and step of K on: mma.sync's four registers.
    __device__ __forceinline__ void load_a(u32 (&words)[4], u32 row, int step) const {
        const u32 matrix = lane_index() / 8;
        load_x4(words, address(row + matrix % 2 * 8, 2 * step + matrix / 2));
    }

    // Load 16 columns of B from this one on: two registers for each eight columns.
    __device__ __forceinline__ void load_b(u32 (&words)[4], u32 column, int step) const {
        const u32 matrix = lane_index() / 8;
        load_x4(words, address(column + matrix / 2 * 8, 2 * step + matrix % 2));
    }

    // Load eight columns of B.
    __device__ __forceinline__ void load_b(u32 (&words)[2], u32 column, int step) const {
        const u32 row = address(column, 2 * step + lane_index() / 8 % 2);
        if constexpr (kIsTransposed) {
            ptx::ldmatrix_x2_trans(row, words[0], words[1]);
        } else {
            ptx::ldmatrix_x2(row, words[0], words[1]);
        }
    }

private:
    static constexpr bool kIsTransposed = Operand::kMajor == Major::kMN;

    __device__ __forceinline__ static void load_x4(u32 (&words)[4], u32 row) {
        if constexpr (kIsTransposed) {
            ptx::ldmatrix_x4_trans(row, words[0], words[1], words[2], words[3]);
        } else {
            ptx::ldmatrix_x4(row, words[0], words[1], words[2], words[3]);
        }
    }

    // The lane's row of the matrix that starts at a row of M or N and at a half of a step of K. The
    // swizzle depends on the lane alone: matrices start at multiples of eight rows.
    __device__ __forceinline__ u32 address(u32 row_of_mn, u32 half) const {
        constexpr u32 kSpan = Operand::kSpan, kPanelBytes = Operand::kPanelBytes;
        const u32 byte = kIsTransposed ? row_of_mn * Operand::kElementBytes : half * 16;
        const u32 in_row = ((line_ + byte % kSpan) ^ exchange_) + byte / kSpan * kPanelBytes;
        return in_row + (kIsTransposed ? half * 8 : row_of_mn) * kSpan;
    }

    u32 line_;
    u32 exchange_;
};

// A pair of FP8 elements as fp16.
template <ptx::MmaType kType>
__device__ __forceinline__ u32 float8_as_half(u32 pair) {
    constexpr bool kIsE4M3 = kType == ptx::MmaType::kE4M3;
    return ptx::cvt_rn_f16x2<kIsE4M3 ? ptx::SmallFloat::kE4M3 : ptx::SmallFloat::kE5M2>(pair);
}

// Multiply by 8 columns of B, 32 bytes of K.
template <ptx::MmaType kA, ptx::MmaType kB, typename Register>
__device__ __forceinline__ void warp_mma_block(
    Register* accumulators, const u32 (&a)[4], u32 b0, u32 b1
) {
    ptx::mma_m16n8<kA, kB>(accumulators, a, b0, b1);
}

// FP8 as fp16 where ptxas would convert it, and add the sum of each 32 elements to the accumulators
// with FADD. The order of K is free: a word's four elements are both halves of K of one fp16
// instruction.
template <ptx::MmaType kA, ptx::MmaType kB>
__device__ __forceinline__ void warp_mma_block(
    float* accumulators, const u32 (&a)[4], u32 b0, u32 b1
) {
    if constexpr (kConvertsFp8 && ptx::is_float8(kA)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 word = half == 0 ? b0 : b1, above = a[2 * half], below = a[2 * half + 1];
            const u32 rows[4] = {
                float8_as_half<kA>(above), float8_as_half<kA>(below),
                float8_as_half<kA>(above >> 16), float8_as_half<kA>(below >> 16)
            };
            ptx::mma_m16n8<ptx::MmaType::kF16, ptx::MmaType::kF16>(
                accumulators, rows, float8_as_half<kB>(word), float8_as_half<kB>(word >> 16)
            );
        }
    } else {
        ptx::mma_m16n8<kA, kB>(accumulators, a, b0, b1);
    }
}

// Multiply a warp's 16 rows of A, in registers, by the columns of B: one step of K.
template <typename A, typename OperandB, typename Register, int kRegisters>
__device__ __forceinline__ void warp_mma_step(
    Register (&accumulators)[kRegisters],
    const u32 (&a)[4],
    const WarpOperand<OperandB>& b,
    int step
) {
    constexpr auto kA = MmaTypeOf<A>::kType, kB = MmaTypeOf<typename OperandB::Element>::kType;
    constexpr int kBlocks = ptx::mma_columns<Register>(kRegisters) / 8;
    constexpr int kEach = kRegisters / kBlocks;
#pragma unroll
    for (int block = 0; block + 1 < kBlocks; block += 2) {
        u32 words[4];
        b.load_b(words, block * 8, step);
        warp_mma_block<kA, kB>(accumulators + block * kEach, a, words[0], words[1]);
        warp_mma_block<kA, kB>(accumulators + (block + 1) * kEach, a, words[2], words[3]);
    }
    if constexpr (kBlocks % 2 == 1) {
        u32 words[2];
        b.load_b(words, (kBlocks - 1) * 8, step);
        warp_mma_block<kA, kB>(accumulators + (kBlocks - 1) * kEach, a, words[0], words[1]);
    }
}

// Whether a loop over K stays a loop. Unrolled, ptxas 13.5 loads FP8 operands of several steps
// ahead, and on sm_100 converts them: attention spills registers. With both operands in shared
// memory, as in GEMMs, only conversions count.
template <typename Element>
constexpr bool kRollsRegisters = !kHasWgmma && ptx::is_float8(MmaTypeOf<Element>::kType);
template <typename Element>
constexpr bool kRollsSteps = kConvertsFp8 && kRollsRegisters<Element>;

template <typename Register, int kRegisters>
__device__ __forceinline__ void clear_unless(
    bool accumulate, Register (&accumulators)[kRegisters]
) {
    if (accumulate) return;
#pragma unroll
    for (Register& accumulator : accumulators) accumulator = 0;
}

// wgmma_tile() with mma.sync: complete on return.
template <typename OperandA, typename OperandB, typename Register, int kRegisters>
__device__ __forceinline__ void warp_mma_tile(
    Register (&accumulators)[kRegisters], u32 start_a, u32 start_b, bool accumulate
) {
    const WarpOperand<OperandA> a(start_a);
    const WarpOperand<OperandB> b(start_b);
    clear_unless(accumulate, accumulators);
#pragma unroll(kRollsSteps<typename OperandA::Element> ? 1 : OperandA::kSteps)
    for (int step = 0; step < OperandA::kSteps; ++step) {
        u32 words[4];
        a.load_a(words, thread_in_warpgroup() / 32 * 16, step);
        warp_mma_step<typename OperandA::Element>(accumulators, words, b, step);
    }
}

// wgmma_tile_rs() with mma.sync: complete on return.
template <typename A, typename OperandB, typename Register, int kRegisters, int kSteps>
__device__ __forceinline__ void warp_mma_tile_rs(
    Register (&accumulators)[kRegisters], const u32 (&a)[kSteps][4], u32 start_b, bool accumulate
) {
    const WarpOperand<OperandB> b(start_b);
    clear_unless(accumulate, accumulators);
    u32 rest[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) rest[i / 4][i % 4] = a[i / 4][i % 4];
#pragma unroll(kRollsRegisters<A> ? 1 : kSteps)
    for (int step = 0; step < kSteps; ++step) {
        warp_mma_step<A>(accumulators, rest[0], b, step);
        // The next step to the front: a register has no index in a loop.
#pragma unroll
        for (int i = 4; i < kSteps * 4; ++i) rest[i / 4 - 1][i % 4] = rest[i / 4][i % 4];
    }
}

}  // namespace tmaasync
