#pragma once

#include <tmaasync/operands/tcgen05.cuh>
#include <tmaasync_emulate/tcgen05_calls.hpp>

namespace tmaasync::ptx {

template <typename A>
__device__ __forceinline__ tmaasync_emulate::Tcgen05Mma tcgen05_form(
    Tcgen05Kind kind, int ctas, u32 d, A a, u64 b, u32 instruction, bool accumulates
) {
    using From = Tcgen05SourceOfA<A>;
    tmaasync_emulate::Tcgen05Mma mma;
    mma.kind = static_cast<tmaasync_emulate::Tcgen05Kind>(kind);
    mma.group = static_cast<u32>(ctas);
    mma.d = d;
    mma.a = From::bits(a);
    mma.a_in_tensor_memory = From::kIsTensorMemory;
    mma.is_sparse = From::kIsSparse;
    mma.metadata = From::metadata(a);
    mma.b = b;
    mma.instruction = instruction;
    mma.accumulates = accumulates;
    return mma;
}

template <
    Tcgen05Kind kKind,
    int kCtas = 1,
    int kScaleInputD = 0,
    Tcgen05Collector kCollector = Tcgen05Collector::kDiscard,
    bool kShiftsA = false,
    typename A>
__device__ __forceinline__ void tcgen05_mma(u32 d, A a, u64 b, u32 instruction, bool accumulates) {
    static_assert(!is_block_scaled(kKind), "this kind has scale factors");
    auto mma = tcgen05_form(kKind, kCtas, d, a, b, instruction, accumulates);
    mma.scale_of_d = kScaleInputD;
    mma.shifts_a = kShiftsA;
    tmaasync_emulate::tcgen05_mma(mma);
}

template <Tcgen05Kind kKind, typename A, int kWords>
__device__ __forceinline__ void tcgen05_mma(
    u32 d, A a, u64 b, u32 instruction, bool accumulates, const u32 (&disabled)[kWords]
) {
    static_assert(!is_block_scaled(kKind), "this kind writes all lanes");
    static_assert(kWords == 4 || kWords == 8, "4 words, or 8 for a pair");
    auto mma = tcgen05_form(kKind, kWords / 4, d, a, b, instruction, accumulates);
    for (int i = 0; i < kWords; ++i) mma.disabled_lanes[i] = disabled[i];
    tmaasync_emulate::tcgen05_mma(mma);
}

template <
    Tcgen05Kind kKind,
    int kCtas = 1,
    int kBlock = kKind == Tcgen05Kind::kMXF4NVF4 ? 16 : 32,
    Tcgen05Collector kCollector = Tcgen05Collector::kDiscard,
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

template <
    Tcgen05Kind kKind,
    Tcgen05Collector kCollector = Tcgen05Collector::kDiscard,
    int kBuffer = 0,
    typename A>
__device__ __forceinline__ void tcgen05_mma_ws(
    u32 d, A a, u64 b, u32 instruction, bool accumulates
) {
    static_assert(!is_block_scaled(kKind), "tcgen05.mma.ws has no scale factors");
    auto mma = tcgen05_form(kKind, 1, d, a, b, instruction, accumulates);
    mma.is_ws = true;
    tmaasync_emulate::tcgen05_mma(mma);
}

}  // namespace tmaasync::ptx
