#pragma once

#include <tmaasync/operands/tcgen05.cuh>
#include <tmaasync_emulate/tcgen05_calls.hpp>

namespace tmaasync::ptx {

template <typename A>
__device__ __forceinline__ tmaasync_emulate::Tcgen05Mma tcgen05_form(
    Tcgen05Kind kind, int ctas, u32 d, A a, u64 b, u32 instruction, bool accumulates
) {
    tmaasync_emulate::Tcgen05Mma mma;
    mma.kind = static_cast<tmaasync_emulate::Tcgen05Kind>(kind);
    mma.group = static_cast<u32>(ctas);
    mma.d = d;
    mma.a = a;
    mma.a_in_tensor_memory = Tcgen05SourceOfA<A>::kIsTensorMemory;
    mma.b = b;
    mma.instruction = instruction;
    mma.accumulates = accumulates;
    return mma;
}

template <Tcgen05Kind kKind, int kCtas = 1, int kScaleInputD = 0, typename A>
__device__ __forceinline__ void tcgen05_mma(u32 d, A a, u64 b, u32 instruction, bool accumulates) {
    static_assert(!is_block_scaled(kKind), "this kind has scale factors");
    auto mma = tcgen05_form(kKind, kCtas, d, a, b, instruction, accumulates);
    mma.scale_of_d = kScaleInputD;
    tmaasync_emulate::tcgen05_mma(mma);
}

template <Tcgen05Kind kKind, typename A>
__device__ __forceinline__ void tcgen05_mma(
    u32 d, A a, u64 b, u32 instruction, bool accumulates, const u32 (&disabled)[4]
) {
    static_assert(!is_block_scaled(kKind), "this kind writes all lanes");
    auto mma = tcgen05_form(kKind, 1, d, a, b, instruction, accumulates);
    for (int i = 0; i < 4; ++i) mma.disabled_lanes[i] = disabled[i];
    tmaasync_emulate::tcgen05_mma(mma);
}

template <
    Tcgen05Kind kKind,
    int kCtas = 1,
    int kBlock = kKind == Tcgen05Kind::kMXF4NVF4 ? 16 : 32,
    typename A>
__device__ __forceinline__ void tcgen05_mma_block_scale(
    u32 d, A a, u64 b, u32 instruction, u32 a_scales, u32 b_scales, bool accumulates
) {
    static_assert(is_block_scaled(kKind), "this kind has no scale factors");
    auto mma = tcgen05_form(kKind, kCtas, d, a, b, instruction, accumulates);
    mma.a_scales = a_scales;
    mma.b_scales = b_scales;
    mma.scale_vector = kKind == Tcgen05Kind::kMXF8F6F4 ? 1 : kBlock == 16 ? 4 : 2;
    tmaasync_emulate::tcgen05_mma(mma);
}

template <Tcgen05Kind kKind, typename A>
__device__ __forceinline__ void tcgen05_mma_ws(
    u32 d, A a, u64 b, u32 instruction, bool accumulates
) {
    static_assert(!is_block_scaled(kKind), "tcgen05.mma.ws has no scale factors");
    auto mma = tcgen05_form(kKind, 1, d, a, b, instruction, accumulates);
    mma.is_ws = true;
    tmaasync_emulate::tcgen05_mma(mma);
}

}  // namespace tmaasync::ptx
