#pragma once

#include <tmaasync/element_bits.cuh>
#include <tmaasync/ptx/mma.cuh>
#include <tmaasync/warp_mma.cuh>

// Block-scaled operands on sm_120a, which has no tensor memory: each warp of a warpgroup multiplies
// 16 rows as in warp_mma.cuh, and mma.sync applies the scale factors of MXFP8, MXFP4 and NVFP4. PTX
// ISA, "Block scaling for mma.sync".
namespace tmaasync {

// The scale factors of 16 rows of A and kColumns columns of B, four along K, as mma.sync takes them
// from the lanes. In shared memory 128 rows by 4 factors are an atom, whose byte of row r and
// factor k is r % 32 * 16 + r / 32 * 4 + k (the layout of cuBLAS and CUTLASS).
template <int kColumns>
struct WarpScales {
    static_assert(kColumns % 32 == 0 && kColumns <= 128, "columns of one atom, in whole words");

    u32 a;                 // of row lane / 4 in even lanes, and of the row eight below in odd ones
    u32 b[kColumns / 32];  // of column 32 i + lane % 4 * 8 + lane / 4

    // `row` and `column`, multiples of 16 and kColumns, are the first ones in their atoms.
    __device__ __forceinline__ WarpScales(
        const u32* atom_a, const u32* atom_b, u32 row, u32 column
    ) {
        const u32 lane = lane_index();
        row += lane / 4 + lane % 2 * 8;
        a = atom_a[row % 32 * 4 + row / 32];
        const u32 first = (lane % 4 * 8 + lane / 4) * 4 + column / 32;
        const auto& words = *reinterpret_cast<const Words*>(atom_b + first);
#pragma unroll
        for (int i = 0; i < kColumns / 32; ++i) b[i] = words.each[i];
    }

private:
    struct alignas(kColumns / 8) Words {
        u32 each[kColumns / 32];
    };
};

// One mma.sync: 16 rows by 8 columns. The scale factors begin at byte kByte of the words, and
// lane kThread of each four lanes has the word of B.
template <typename A, typename B, int kBlock, int kByte, int kThread>
__device__ __forceinline__ void warp_scaled_mma(
    float* accumulators, const u32 (&a)[4], u32 b0, u32 b1, u32 scale_a, u32 scale_b
) {
    using ptx::SmallFloat;
    auto& d = *reinterpret_cast<float (*)[4]>(accumulators);
    const u32 b[] = {b0, b1};
    const ptx::MmaScale<kByte, 0> of_a{scale_a};
    const ptx::MmaScale<kByte, kThread> of_b{scale_b};
    if constexpr (kSameType<A, float4_e2m1>) {
        static_assert(kSameType<B, float4_e2m1>, "float4_e2m1 is multiplied by itself alone");
        ptx::mma_mxf4<kBlock == 16>(d, a, b, of_a, of_b);
    } else {
        static_assert(kBlock == 32, "a scale factor is of 32 elements, or of 16 float4_e2m1");
        constexpr bool kAIsE4M3 = kSameType<A, float8_e4m3>, kBIsE4M3 = kSameType<B, float8_e4m3>;
        constexpr auto kA = kAIsE4M3 ? SmallFloat::kE4M3 : SmallFloat::kE5M2;
        constexpr auto kB = kBIsE4M3 ? SmallFloat::kE4M3 : SmallFloat::kE5M2;
        ptx::mma_mxf8f6f4<kA, kB>(d, a, b, of_a, of_b);
    }
}

// Multiply the steps from kStep on of a tile: A is [rows, 128 bytes], B [kColumns, 128 bytes]. A
// and B are the element types, float4_e2m1 two in a byte; the operands' own may be bytes.
// scales(i) returns the i-th WarpScales along K.
template <
    typename A,
    typename B,
    int kBlock,
    int kStep = 0,
    typename OperandA,
    typename OperandB,
    int kRegisters,
    typename Scales>
__device__ __forceinline__ void warp_scaled_mma_steps(
    float (&accumulators)[kRegisters],
    const WarpOperand<OperandA>& a,
    const WarpOperand<OperandB>& b,
    const Scales& scales
) {
    constexpr int kFactors = (kSameType<A, float4_e2m1> ? 64 : 32) / kBlock;  // of a step
    constexpr int kByte = kStep * kFactors % 4;
    const auto& of_step = scales(kStep * kFactors / 4);
    u32 words_a[4];
    a.load_a(words_a, thread_in_warpgroup() / 32 * 16, kStep);
#pragma unroll
    for (int i = 0; i < kRegisters / 16; ++i) {
        float* const d = accumulators + 16 * i;
        const u32 of_b = of_step.b[i];
        u32 low[4], high[4];
        b.load_b(low, 32 * i, kStep);
        b.load_b(high, 32 * i + 16, kStep);
        warp_scaled_mma<A, B, kBlock, kByte, 0>(d, words_a, low[0], low[1], of_step.a, of_b);
        warp_scaled_mma<A, B, kBlock, kByte, 1>(d + 4, words_a, low[2], low[3], of_step.a, of_b);
        warp_scaled_mma<A, B, kBlock, kByte, 2>(d + 8, words_a, high[0], high[1], of_step.a, of_b);
        warp_scaled_mma<A, B, kBlock, kByte, 3>(d + 12, words_a, high[2], high[3], of_step.a, of_b);
    }
    if constexpr (kStep + 1 < OperandA::kSteps) {
        warp_scaled_mma_steps<A, B, kBlock, kStep + 1>(accumulators, a, b, scales);
    }
}

}  // namespace tmaasync
