#pragma once

#include <tmaasync/operands/tcgen05.cuh>
#include <tmaasync_emulate/tcgen05_reductions.hpp>

namespace tmaasync::ptx {

template <Tcgen05Shape kShape, int kCount, int kSplit>
struct Tcgen05Registers {
    static constexpr u32 kRepeats = kCount / registers_of(kShape);
    static_assert(kRepeats * registers_of(kShape) == kCount, "as many registers as the shape has");
    static_assert(
        (kShape == Tcgen05Shape::k16x32bx2) == (kSplit >= 0),
        "the shape 16x32bx2, and no other, takes the column offset of its second half"
    );
    __device__ static constexpr tmaasync_emulate::Tcgen05Transfer transfer(bool packs) {
        return {
            static_cast<tmaasync_emulate::Tcgen05Shape>(kShape), kRepeats, packs,
            static_cast<u32>(kSplit < 0 ? 0 : kSplit)
        };
    }
};

template <Tcgen05Shape kShape, bool kPack = false, int kSplit = -1, int kCount>
__device__ __forceinline__ void tcgen05_ld(u32 (&d)[kCount], u32 address) {
    const auto transfer = Tcgen05Registers<kShape, kCount, kSplit>::transfer(kPack);
    tmaasync_emulate::tcgen05_load(transfer, address, d);
}

template <Tcgen05Shape kShape, bool kUnpack = false, int kSplit = -1, int kCount>
__device__ __forceinline__ void tcgen05_st(u32 address, const u32 (&s)[kCount]) {
    const auto transfer = Tcgen05Registers<kShape, kCount, kSplit>::transfer(kUnpack);
    tmaasync_emulate::tcgen05_store(transfer, address, s);
}

template <Tcgen05Shape kShape, Tcgen05Reduction kReduction, int kSplit = -1, int kCount>
__device__ __forceinline__ void tcgen05_ld_red(u32 (&d)[kCount], u32& reduced, u32 address) {
    using tmaasync_emulate::Tcgen05Reduced;
    constexpr auto kNumber = static_cast<u32>(kReduction);
    constexpr bool kIsMax = kNumber % 2;
    const auto transfer = Tcgen05Registers<kShape, kCount, kSplit>::transfer(false);
    tmaasync_emulate::tcgen05_load(transfer, address, d);
    constexpr auto kType = static_cast<Tcgen05Reduced>(kNumber / 2);
    reduced = tmaasync_emulate::tcgen05_reduced(kType, kIsMax, false, false, d, kCount);
}

}  // namespace tmaasync::ptx
