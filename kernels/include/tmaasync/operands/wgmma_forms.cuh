#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "wgmma.mma_async". The forms that exist; tmaasync.wgmma.forms holds the same rules.
namespace tmaasync::ptx {

// The type as which the tensor cores read the elements of an operand.
enum class MmaType { kF16, kBF16, kTF32, kE4M3, kE5M2, kS8, kU8 };

__device__ constexpr bool is_float8(MmaType type) {
    return type == MmaType::kE4M3 || type == MmaType::kE5M2;
}
__device__ constexpr bool is_integer(MmaType type) {
    return type == MmaType::kS8 || type == MmaType::kU8;
}
__device__ constexpr int element_bytes(MmaType type) {
    if (type == MmaType::kTF32) return 4;
    return is_float8(type) || is_integer(type) ? 1 : 2;
}

// The accumulators, by the register that holds them: float; fp16, two in a u32; int32, in an int.
template <typename Register>
struct MmaAccumulators;
template <>
struct MmaAccumulators<float> {
    __device__ static constexpr int per_register() { return 1; }
    __device__ static constexpr bool takes(MmaType type) { return !is_integer(type); }
    __device__ static constexpr bool has_columns(int n) { return n % 8 == 0 && 8 <= n && n <= 256; }
};
template <>
struct MmaAccumulators<u32> {
    __device__ static constexpr int per_register() { return 2; }
    __device__ static constexpr bool takes(MmaType type) {
        return type == MmaType::kF16 || is_float8(type);
    }
    __device__ static constexpr bool has_columns(int n) { return n % 8 == 0 && 8 <= n && n <= 256; }
};
template <>
struct MmaAccumulators<int> {
    __device__ static constexpr int per_register() { return 1; }
    __device__ static constexpr bool takes(MmaType type) { return is_integer(type); }
    __device__ static constexpr bool has_columns(int n) {
        return n == 24 || (n % 16 == 0 && 16 <= n && n <= 256) || n == 8;
    }
};

// Columns of the accumulators, by the number of registers in each thread.
template <typename Register>
__device__ constexpr int mma_columns(int registers) {
    return 2 * registers * MmaAccumulators<Register>::per_register();
}

// Text that becomes part of an instruction, for the constraint "C" of inline assembly.
template <char... kLetters>
struct MmaText {
    static constexpr char letters[] = {kLetters..., '\0'};
};

// The depth of the instruction, and how it names the type.
template <MmaType kType>
struct MmaOperand;
template <>
struct MmaOperand<MmaType::kF16> {
    using Depth = MmaText<'k', '1', '6'>;
    using Name = MmaText<'.', 'f', '1', '6'>;
};
template <>
struct MmaOperand<MmaType::kBF16> {
    using Depth = MmaText<'k', '1', '6'>;
    using Name = MmaText<'.', 'b', 'f', '1', '6'>;
};
template <>
struct MmaOperand<MmaType::kTF32> {
    using Depth = MmaText<'k', '8'>;
    using Name = MmaText<'.', 't', 'f', '3', '2'>;
};
template <>
struct MmaOperand<MmaType::kE4M3> {
    using Depth = MmaText<'k', '3', '2'>;
    using Name = MmaText<'.', 'e', '4', 'm', '3'>;
};
template <>
struct MmaOperand<MmaType::kE5M2> {
    using Depth = MmaText<'k', '3', '2'>;
    using Name = MmaText<'.', 'e', '5', 'm', '2'>;
};
template <>
struct MmaOperand<MmaType::kS8> {
    using Depth = MmaText<'k', '3', '2'>;
    using Name = MmaText<'.', 's', '8'>;
};
template <>
struct MmaOperand<MmaType::kU8> {
    using Depth = MmaText<'k', '3', '2'>;
    using Name = MmaText<'.', 'u', '8'>;
};

// The transpose bit of an operand, 1 where its M or N side is contiguous; 16-bit types alone have
// it.
template <bool kHasBit, int kTranspose>
struct MmaTranspose : MmaText<> {};
template <>
struct MmaTranspose<true, 0> : MmaText<',', ' ', '0'> {};
template <>
struct MmaTranspose<true, 1> : MmaText<',', ' ', '1'> {};

// One instruction's types and modifiers. It only compiles if the instruction exists.
template <
    typename Register,
    MmaType kA,
    MmaType kB,
    int kTransposeA,
    int kTransposeB,
    int kScaleA,
    int kScaleB>
struct MmaForm {
    static constexpr bool kHas16Bits = element_bytes(kA) == 2;
    static_assert(
        kA == kB || (is_float8(kA) && is_float8(kB)) || (is_integer(kA) && is_integer(kB)),
        "wgmma mixes e4m3 with e5m2 and s8 with u8, and no other types: convert one operand"
    );
    static_assert(
        MmaAccumulators<Register>::takes(kA),
        "accumulators are float, u32 (pairs of fp16) for fp16 and 8-bit floats, or int for integers"
    );
    static_assert(
        (kTransposeA | kTransposeB) == 0 || (kHas16Bits && (kTransposeA | kTransposeB) == 1),
        "only bf16 and fp16 operands may have M or N contiguous: load the others K-major"
    );
    static_assert(
        kScaleA * kScaleA == 1 && kScaleB * kScaleB == 1, "an operand is scaled by 1 or by -1"
    );
    static_assert(
        !is_integer(kA) || (kScaleA == 1 && kScaleB == 1), "integer operands have no scale"
    );

    using Depth = typename MmaOperand<kA>::Depth;
    using NameA = typename MmaOperand<kA>::Name;
    using NameB = typename MmaOperand<kB>::Name;
    using TransposeA = MmaTranspose<kHas16Bits, kTransposeA>;
    using TransposeB = MmaTranspose<kHas16Bits, kTransposeB>;
};

}  // namespace tmaasync::ptx
