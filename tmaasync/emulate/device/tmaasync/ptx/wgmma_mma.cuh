#pragma once

#include <tmaasync/operands/wgmma_forms.cuh>

// All functions of the generated header, for any legal number of accumulators.
namespace tmaasync::ptx {

template <typename Register>
constexpr auto kEmulatedSum = tmaasync_emulate::MmaSum::kFloat;
template <>
constexpr auto kEmulatedSum<u32> = tmaasync_emulate::MmaSum::kHalf;
template <>
constexpr auto kEmulatedSum<int> = tmaasync_emulate::MmaSum::kInt;

// The part that does not depend on where A lies.
template <MmaType kA, MmaType kB, int kTransposeB, int kScaleA, int kScaleB>
struct EmulatedMma {
    template <typename Register, int kRegisters>
    static tmaasync_emulate::Mma make(Register (&d)[kRegisters], u64 b, u32 scale_d) {
        constexpr int kColumns = mma_columns<Register>(kRegisters);
        static_assert(
            MmaAccumulators<Register>::has_columns(kColumns), "no instruction has this N"
        );
        tmaasync_emulate::Mma mma{};
        mma.accumulators = d;
        mma.columns = kColumns;
        mma.b = b;
        mma.a_element = static_cast<tmaasync_emulate::MmaElement>(kA);
        mma.b_element = static_cast<tmaasync_emulate::MmaElement>(kB);
        mma.sum = kEmulatedSum<Register>;
        mma.accumulates = scale_d != 0;
        mma.b_transposed = kTransposeB;
        mma.is_negated = kScaleA != kScaleB;
        return mma;
    }
};

template <
    MmaType kA,
    MmaType kB,
    int kTransposeA = 0,
    int kTransposeB = 0,
    int kScaleA = 1,
    int kScaleB = 1,
    typename Register,
    int kRegisters>
__device__ __forceinline__ void wgmma_mma_async_ss(
    Register (&d)[kRegisters], u64 a, u64 b, u32 scale_d
) {
    (void)MmaForm<Register, kA, kB, kTransposeA, kTransposeB, kScaleA, kScaleB>{};
    auto mma = EmulatedMma<kA, kB, kTransposeB, kScaleA, kScaleB>::make(d, b, scale_d);
    mma.a = a;
    mma.a_transposed = kTransposeA;
    tmaasync_emulate::mma_issue(mma);
}

template <
    MmaType kA,
    MmaType kB,
    int kTransposeB = 0,
    int kScaleA = 1,
    int kScaleB = 1,
    typename Register,
    int kRegisters>
__device__ __forceinline__ void wgmma_mma_async_rs(
    Register (&d)[kRegisters], const u32 (&a)[4], u64 b, u32 scale_d
) {
    (void)MmaForm<Register, kA, kB, 0, kTransposeB, kScaleA, kScaleB>{};
    auto mma = EmulatedMma<kA, kB, kTransposeB, kScaleA, kScaleB>::make(d, b, scale_d);
    mma.a_in_registers = true;
    for (int i = 0; i < 4; ++i) mma.a_registers[i] = a[i];
    mma.a_held = a;
    tmaasync_emulate::mma_issue(mma);
}

}  // namespace tmaasync::ptx
