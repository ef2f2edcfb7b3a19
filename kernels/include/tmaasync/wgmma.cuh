#pragma once

#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/stmatrix.cuh>
#include <tmaasync/ptx/wgmma.cuh>
#include <tmaasync/ptx/wgmma_mma.cuh>
#include <tmaasync/swizzle.cuh>
#include <tmaasync/types.cuh>

namespace tmaasync {

// Which side of an operand is contiguous in shared memory: K, or M (of A) / N (of B).
enum class Major { kK, kMN };

// The 64 bits by which wgmma reads an operand tile from shared memory. PTX ISA: "matrix
// descriptor". `leading_bytes` separates swizzle atoms along the leading side, `stride_bytes`
// groups of 8 rows.
template <Swizzle kSwizzle>
__device__ __forceinline__ u64 matrix_descriptor(u32 shared, u32 leading_bytes, u32 stride_bytes) {
    constexpr u64 kLayout = kSwizzle == Swizzle::kNone ? 0 : 4 - static_cast<int>(kSwizzle);
    return kLayout << 62 | static_cast<u64>(stride_bytes >> 4) << 32 |
           static_cast<u64>(leading_bytes >> 4) << 16 | (shared & 0x3ffff) >> 4;
}

// An operand as TMA loads it with 128-byte swizzle: [chunks][rows][128 bytes].
//   Major::kK:  rows run along M or N, a chunk is 128 bytes of K.
//   Major::kMN: rows run along K, a chunk is 128 bytes of M or N.
template <typename Tile, Major kMajor>
struct WgmmaOperand {
    using Element = typename Tile::Element;
    static_assert(Tile::kSwizzle == Swizzle::k128B, "operands are loaded with Swizzle.B128");
    static_assert(sizeof(Element) == 2, "bf16 and fp16 operands");

    static constexpr int kChunk = 128 / static_cast<int>(sizeof(Element));
    static constexpr int kRows = Tile::side(0);
    static constexpr u32 kChunkBytes = kRows * 128;
    static constexpr u32 kAtomBytes = 8 * 128;
    static constexpr int kInstructionK = 32 / static_cast<int>(sizeof(Element));
    static constexpr int kDepth = kMajor == Major::kK ? Tile::side(1) : Tile::side(0);
    static constexpr int kSteps = kDepth / kInstructionK;
    static constexpr int kTranspose = kMajor == Major::kK ? 0 : 1;

    // Descriptor of the part that starts at this row of M or N (a multiple of 8, or of a chunk).
    __device__ __forceinline__ static u64 descriptor(
        const typename Tile::Shared& shared, u32 first
    ) {
        const u32 base = ptx::shared_address(shared.bytes);
        if constexpr (kMajor == Major::kK) {
            return matrix_descriptor<Swizzle::k128B>(base + first * 128, 16, kAtomBytes);
        } else {
            return matrix_descriptor<Swizzle::k128B>(
                base + first / kChunk * kChunkBytes, kChunkBytes, kAtomBytes
            );
        }
    }

    // What the step-th instruction along K adds to the descriptor.
    __device__ __forceinline__ static constexpr u64 step_offset(int step) {
        if constexpr (kMajor == Major::kK) {
            constexpr int kStepsPerChunk = kChunk / kInstructionK;
            return (step / kStepsPerChunk * kChunkBytes + step % kStepsPerChunk * 32) >> 4;
        } else {
            return static_cast<u64>(step) * kInstructionK * 128 >> 4;
        }
    }
};

// One wgmma.mma_async, both operands in shared memory; the accumulators choose N.
template <typename Element, int kTransposeA, int kTransposeB, int kAccumulators>
__device__ __forceinline__ void wgmma_ss(
    float (&accumulators)[kAccumulators], u64 a, u64 b, bool accumulate
) {
    if constexpr (kSameType<Element, bfloat16>) {
        ptx::wgmma_mma_async_bf16_ss<kTransposeA, kTransposeB>(accumulators, a, b, accumulate);
    } else {
        static_assert(kSameType<Element, float16>, "bf16 or fp16 operands");
        ptx::wgmma_mma_async_f16_ss<kTransposeA, kTransposeB>(accumulators, a, b, accumulate);
    }
}

// A whole tile along K: 64 rows of A from `first_a`, all of B, one instruction per K step.
template <typename OperandA, typename OperandB, int kAccumulators>
__device__ __forceinline__ void wgmma_tile(
    float (&accumulators)[kAccumulators], u64 a, u64 b, bool accumulate
) {
    static_assert(OperandA::kDepth == OperandB::kDepth, "A and B are equally deep");
    static_assert(kSameType<typename OperandA::Element, typename OperandB::Element>, "one type");
#pragma unroll
    for (int step = 0; step < OperandA::kSteps; ++step) {
        wgmma_ss<typename OperandA::Element, OperandA::kTranspose, OperandB::kTranspose>(
            accumulators, a + OperandA::step_offset(step), b + OperandB::step_offset(step),
            accumulate || step > 0
        );
    }
}

// The compiler may not move the accumulators across this point.
template <int kAccumulators>
__device__ __forceinline__ void wgmma_fence_operands(float (&accumulators)[kAccumulators]) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
        ptx::wgmma_fence_operand(accumulators[i]);
    }
}

}  // namespace tmaasync
