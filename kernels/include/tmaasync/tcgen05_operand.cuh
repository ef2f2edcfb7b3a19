#pragma once

#include <tmaasync/wgmma_operand.cuh>

namespace tmaasync {

// PTX ISA, "Shared memory descriptor" of tcgen05: bits 46 to 48 are 0b001. All else is as in the
// matrix descriptor of wgmma, its layouts included.
constexpr u64 kTcgen05DescriptorVersion = u64{1} << 46;

// An operand of tcgen05.mma, which lies in shared memory as wgmma reads it.
template <typename Layout>
struct ReadByTcgen05 : Layout {
    // Descriptor of the part that starts at this row of M or N, a multiple of 8.
    template <typename Shared>
    __device__ __forceinline__ static u64 descriptor(const Shared& shared, u32 first = 0) {
        return Layout::descriptor(shared, first) | kTcgen05DescriptorVersion;
    }
};

template <typename T, Swizzle kSwizzle, Major kMajor, int kRows, int kColumns>
using Tcgen05Buffer = ReadByTcgen05<WgmmaBuffer<T, kSwizzle, kMajor, kRows, kColumns>>;

// The operand that a tile loads.
template <typename Tile, Major kMajor>
using Tcgen05Operand = ReadByTcgen05<WgmmaOperand<Tile, kMajor>>;

// --- the instruction descriptor ------------------------------------------------------------------

// The code of an element type in the instruction descriptor, which depends on the kind.
__device__ constexpr u32 tcgen05_type_code(MmaType type) {
    switch (type) {
        case MmaType::kBF16:
        case MmaType::kE5M2:
        case MmaType::kS8:
            return 1;
        case MmaType::kTF32:
            return 2;
        default:
            return 0;
    }
}

// The 32 bits that describe a tcgen05.mma of dense operands without block scales, of `m` rows (of
// both CTAs of a pair) and `n` columns. PTX ISA, "Instruction descriptor". Accumulators are float,
// or int for integers.
template <typename OperandA, typename OperandB>
__device__ constexpr u32 tcgen05_instruction_descriptor(int m, int n) {
    constexpr MmaType kA = MmaTypeOf<typename OperandA::Element>::kType;
    constexpr MmaType kB = MmaTypeOf<typename OperandB::Element>::kType;
    constexpr u32 kSum = ptx::is_integer(kA) ? 2 : 1;
    constexpr u32 kMajors = (OperandA::kMajor == Major::kMN ? 1u << 15 : 0) |
                            (OperandB::kMajor == Major::kMN ? 1u << 16 : 0);
    return kSum << 4 | tcgen05_type_code(kA) << 7 | tcgen05_type_code(kB) << 10 | kMajors |
           static_cast<u32>(n) >> 3 << 17 | static_cast<u32>(m) >> 4 << 24;
}

}  // namespace tmaasync
