#pragma once

#include <tmaasync/operands/wgmma_forms.cuh>
#include <tmaasync/ptx/mma.cuh>

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
    constexpr auto kKind = kA == MmaType::kTF32 ? Tcgen05Kind::kTF32
                           : is_float8(kA)      ? Tcgen05Kind::kF8F6F4
                           : is_integer(kA)     ? Tcgen05Kind::kI8
                                                : Tcgen05Kind::kF16;
    constexpr u32 kInstruction =
        emulated_code(kA) << 7 | emulated_code(kB) << 10 | kEmulatedSumCode<Register> << 4;
    constexpr int kSums = kEmulatedSumCode<Register> == 0 ? 2 : 4;
    const u32 b[] = {b0, b1};
    add_to_sums(*reinterpret_cast<Register(*)[kSums]>(d), [&](auto& after, const auto& before) {
        tmaasync_emulate::inline_ptx::multiply_kind<kKind, 0>(kInstruction, after, a, b, before);
    });
}

}  // namespace tmaasync::ptx
