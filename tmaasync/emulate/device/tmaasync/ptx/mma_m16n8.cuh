#pragma once

#include <tmaasync/operands/wgmma_forms.cuh>

namespace tmaasync::ptx {

// The codes of a type and of the accumulators in tcgen05's instruction descriptor.
constexpr u32 emulated_code(MmaType type) {
    const bool is_one = type == MmaType::kBF16 || type == MmaType::kE5M2 || type == MmaType::kS8;
    return type == MmaType::kTF32 ? 2 : is_one;
}
template <typename Register>
constexpr u32 kEmulatedSumCode = 1;
template <>
constexpr u32 kEmulatedSumCode<u32> = 0;
template <>
constexpr u32 kEmulatedSumCode<int> = 2;

template <MmaType kA, MmaType kB, typename Register>
__device__ __forceinline__ void mma_m16n8(Register* d, const u32 (&a)[4], u32 b0, u32 b1) {
    using tmaasync_emulate::Tcgen05Kind;
    (void)MmaForm<Register, kA, kB, 0, 0, 1, 1>{};
    constexpr int kRegisters = kEmulatedSumCode<Register> == 0 ? 2 : 4;
    tmaasync_emulate::WarpMma mma{};
    mma.kind = kA == MmaType::kTF32 ? Tcgen05Kind::kTF32
               : is_float8(kA)      ? Tcgen05Kind::kF8F6F4
               : is_integer(kA)     ? Tcgen05Kind::kI8
                                    : Tcgen05Kind::kF16;
    mma.instruction =
        emulated_code(kA) << 7 | emulated_code(kB) << 10 | kEmulatedSumCode<Register> << 4;
    for (int i = 0; i < 4; ++i) mma.a[i] = a[i];
    mma.b[0] = b0;
    mma.b[1] = b1;
    for (int i = 0; i < kRegisters; ++i) mma.sums[i] = __builtin_bit_cast(u32, d[i]);
    tmaasync_emulate::multiply_with_warp(mma);
    for (int i = 0; i < kRegisters; ++i) d[i] = __builtin_bit_cast(Register, mma.sums[i]);
}

}  // namespace tmaasync::ptx
