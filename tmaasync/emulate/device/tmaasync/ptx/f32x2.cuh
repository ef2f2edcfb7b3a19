#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/inline_ptx/floats.hpp>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

using EmulatedPair = tmaasync_emulate::inline_ptx::Pair<float>;

template <bool kToZero>
constexpr auto kEmulatedRound =
    kToZero ? tmaasync_emulate::inline_ptx::Round::kRz : tmaasync_emulate::inline_ptx::Round::kRn;

__device__ __forceinline__ EmulatedPair pair_of(u64 bits) {
    return std::bit_cast<EmulatedPair>(bits);
}

template <bool kToZero = false>
__device__ __forceinline__ u64 add_f32x2(u64 a, u64 b) {
    using namespace tmaasync_emulate::inline_ptx;
    tmaasync_emulate::check_f32x2();
    return std::bit_cast<u64>(sum<kEmulatedRound<kToZero>, false, false>(pair_of(a), pair_of(b)));
}

template <bool kToZero = false>
__device__ __forceinline__ u64 mul_f32x2(u64 a, u64 b) {
    using namespace tmaasync_emulate::inline_ptx;
    tmaasync_emulate::check_f32x2();
    return std::bit_cast<u64>(
        multiplied<kEmulatedRound<kToZero>, false, false>(pair_of(a), pair_of(b))
    );
}

template <bool kToZero = false>
__device__ __forceinline__ u64 fma_f32x2(u64 a, u64 b, u64 c) {
    using namespace tmaasync_emulate::inline_ptx;
    tmaasync_emulate::check_f32x2();
    return std::bit_cast<u64>(
        fused<kEmulatedRound<kToZero>, false, false, false>(pair_of(a), pair_of(b), pair_of(c))
    );
}

}  // namespace tmaasync::ptx
