#pragma once

#include <tmaasync/operands/small_floats.cuh>
#include <tmaasync_emulate/inline_ptx/convert.hpp>
#include <tmaasync_emulate/refused.hpp>
#include <tuple>

namespace tmaasync::ptx {

// The emulator's type of a float, by its number.
template <SmallFloat kType>
using EmulatedFloat = std::tuple_element_t<
    static_cast<std::size_t>(kType),
    std::tuple<
        tmaasync_emulate::inline_ptx::E4M3Bits,
        tmaasync_emulate::inline_ptx::E5M2Bits,
        tmaasync_emulate::inline_ptx::E2M3Bits,
        tmaasync_emulate::inline_ptx::E3M2Bits,
        tmaasync_emulate::inline_ptx::E2M1Bits>>;

template <SmallFloat kType>
__device__ __forceinline__ void check_small_float() {
    if constexpr (kType > SmallFloat::kE5M2) tmaasync_emulate::check_small_floats();
}

template <SmallFloat kTo, bool kRelu = false>
__device__ __forceinline__ u32 cvt_rn_satfinite_x2(float high, float low) {
    using namespace tmaasync_emulate::inline_ptx;
    using tmaasync_emulate::inline_ptx::Round;
    check_small_float<kTo>();
    return packed<EmulatedFloat<kTo>, Round::kRn, kRelu, true>(high, low);
}

template <SmallFloat kFrom, bool kRelu = false>
__device__ __forceinline__ u32 cvt_rn_f16x2(u32 pair) {
    using namespace tmaasync_emulate::inline_ptx;
    check_small_float<kFrom>();
    return std::bit_cast<u32>(unpacked_halves<EmulatedFloat<kFrom>, kRelu>(pair));
}

template <bool kRoundsUp = true>
__device__ __forceinline__ u32 cvt_satfinite_ue8m0x2(float high, float low) {
    using namespace tmaasync_emulate::inline_ptx;
    using tmaasync_emulate::inline_ptx::Round;
    tmaasync_emulate::check_small_floats();
    return packed<E8M0Bits, kRoundsUp ? Round::kRp : Round::kRz, false, true>(high, low);
}

template <bool kRelu = false>
__device__ __forceinline__ u32 cvt_rs_satfinite_f16x2(float high, float low, u32 random) {
    using namespace tmaasync_emulate::inline_ptx;
    tmaasync_emulate::check_stochastic();
    return packed_stochastically<HalfBits, kRelu, true>(random, high, low);
}

template <bool kRelu = false>
__device__ __forceinline__ u32 cvt_rs_satfinite_bf16x2(float high, float low, u32 random) {
    using namespace tmaasync_emulate::inline_ptx;
    tmaasync_emulate::check_stochastic();
    return packed_stochastically<BfloatBits, kRelu, true>(random, high, low);
}

template <SmallFloat kTo, bool kRelu = false>
__device__ __forceinline__ u32 cvt_rs_satfinite_x4(const float (&v)[4], u32 random) {
    using namespace tmaasync_emulate::inline_ptx;
    tmaasync_emulate::check_stochastic();
    using To = EmulatedFloat<kTo>;
    return packed_stochastically<To, kRelu, true>(random, v[0], v[1], v[2], v[3]);
}

}  // namespace tmaasync::ptx
