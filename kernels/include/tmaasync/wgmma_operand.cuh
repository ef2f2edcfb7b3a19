#pragma once

#include <tmaasync/operand_buffer.cuh>
#include <tmaasync/operands/wgmma_forms.cuh>
#include <tmaasync/types.cuh>

namespace tmaasync {

using ptx::MmaType;

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

// --- descriptors ---------------------------------------------------------------------------------

// The 64 bits by which wgmma reads an operand tile from shared memory. PTX ISA: "matrix
// descriptor". `leading_bytes` separates swizzle atoms along the leading side, `stride_bytes`
// groups of 8 rows.
template <Swizzle kSwizzle>
__device__ __forceinline__ u64
initialize_wgmma_descriptor(u32 shared, u32 leading_bytes, u32 stride_bytes) {
    static_assert(kSwizzle <= Swizzle::k128B, "wgmma has no swizzle atoms of 32 bytes");
    constexpr u64 kLayout = kSwizzle == Swizzle::kNone ? 0 : 4 - static_cast<int>(kSwizzle);
    return kLayout << 62 | static_cast<u64>(stride_bytes >> 4) << 32 |
           static_cast<u64>(leading_bytes >> 4) << 16 | (shared & 0x3ffff) >> 4;
}

// --- operands ------------------------------------------------------------------------------------

// An operand of wgmma in shared memory.
template <typename T, Swizzle kSwizzle, Major kOperandMajor, int kRows, int kColumns>
struct WgmmaBuffer : OperandBuffer<T, kSwizzle, kOperandMajor, kRows, kColumns> {
    using Base = OperandBuffer<T, kSwizzle, kOperandMajor, kRows, kColumns>;

    static_assert(
        kOperandMajor == Major::kK || sizeof(T) == 2,
        "only bf16 and fp16 operands may have M or N contiguous: load the others K-major"
    );

    // Descriptor of the part that starts at this row of M or N, a multiple of 8: see is_readable().
    template <typename Shared>
    __device__ __forceinline__ static u64 descriptor(const Shared& shared, u32 first) {
        return initialize_wgmma_descriptor<kSwizzle>(
            Base::start_address(shared, first), Base::kLeadingBytes, Base::kStrideBytes
        );
    }
};

// The operand that a tile loads.
template <typename Tile, Major kOperandMajor>
struct WgmmaOperand : TileOperand<WgmmaBuffer, Tile, kOperandMajor> {};

}  // namespace tmaasync
