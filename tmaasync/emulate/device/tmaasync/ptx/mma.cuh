#pragma once

#include <tmaasync/operands/small_floats.cuh>
#include <tmaasync_emulate/inline_ptx/matrices.hpp>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

template <int kByte, int kThread>
struct MmaScale {
    u32 word;
};

// Adds to d, whose registers are words or floats.
template <typename Register, int kSums, typename Multiply>
__device__ __forceinline__ void add_to_sums(Register (&d)[kSums], Multiply multiply) {
    u32 before[kSums], after[kSums];
    for (int i = 0; i < kSums; ++i) before[i] = std::bit_cast<u32>(d[i]);
    multiply(after, before);
    for (int i = 0; i < kSums; ++i) d[i] = std::bit_cast<Register>(after[i]);
}

template <bool kAIsColumn = false, bool kBIsRow = false, typename Register, int kSums>
__device__ __forceinline__ void mma_m8n8k4(
    Register (&d)[kSums], const u32 (&a)[2], const u32 (&b)[2]
) {
    static_assert(kSums == (Register(0.5f) == 0 ? 4 : 8), "8 floats, or 4 registers of halves");
    add_to_sums(d, [&](u32(&after)[kSums], const u32(&before)[kSums]) {
        tmaasync_emulate::inline_ptx::multiply_quads<kAIsColumn, kBIsRow, kSums == 4>(
            after, a, b, before
        );
    });
}

// Types as in the instruction descriptor, and with halves the sums of f16.
template <SmallFloat kA, SmallFloat kB>
constexpr u32 kTypesOfMma = [] {
    constexpr u32 kCodes[] = {0, 1, 3, 4, 5};
    return kCodes[static_cast<int>(kA)] << 7 | kCodes[static_cast<int>(kB)] << 10;
}();
constexpr u32 kSumsOfFloats = 1u << 4, kScalesOfE8M0 = 1u << 23;

template <tmaasync_emulate::Tcgen05Kind kKind, int kVector, typename Register, int kSums, int kB>
__device__ __forceinline__ void multiply_by_warp(
    u32 instruction,
    Register (&d)[kSums],
    const u32 (&a)[4],
    const u32 (&b)[kB],
    u32 metadata,
    const tmaasync_emulate::inline_ptx::ScaleOperands& scales = {}
) {
    tmaasync_emulate::check_mma_kinds();
    add_to_sums(d, [&](u32(&after)[kSums], const u32(&before)[kSums]) {
        tmaasync_emulate::inline_ptx::multiply_kind<kKind, kVector>(
            instruction, after, a, b, before, scales, metadata
        );
    });
}

template <SmallFloat kA, SmallFloat kB, typename Register, int kSums, int kWords>
__device__ __forceinline__ void mma_f8f6f4(
    Register (&d)[kSums], const u32 (&a)[4], const u32 (&b)[kWords], u32 metadata = 0
) {
    constexpr u32 kInstruction = kTypesOfMma<kA, kB> | (kSums == 4 ? kSumsOfFloats : 0);
    multiply_by_warp<tmaasync_emulate::Tcgen05Kind::kF8F6F4, 0>(kInstruction, d, a, b, metadata);
}

template <int kAByte, int kAThread, int kBByte, int kBThread>
__device__ __forceinline__ auto scales_of(
    MmaScale<kAByte, kAThread> a, MmaScale<kBByte, kBThread> b
) {
    return tmaasync_emulate::inline_ptx::scale_operands(
        a.word, b.word, kAByte, kAThread, kBByte, kBThread
    );
}

template <
    SmallFloat kA,
    SmallFloat kB,
    int kAByte,
    int kAThread,
    int kBByte,
    int kBThread,
    int kWords>
__device__ __forceinline__ void mma_mxf8f6f4(
    float (&d)[4],
    const u32 (&a)[4],
    const u32 (&b)[kWords],
    u32 metadata,
    MmaScale<kAByte, kAThread> a_scale,
    MmaScale<kBByte, kBThread> b_scale
) {
    multiply_by_warp<tmaasync_emulate::Tcgen05Kind::kMXF8F6F4, 1>(
        kTypesOfMma<kA, kB> | kScalesOfE8M0, d, a, b, metadata, scales_of(a_scale, b_scale)
    );
}
template <SmallFloat kA, SmallFloat kB, int kAByte, int kAThread, int kBByte, int kBThread>
__device__ __forceinline__ void mma_mxf8f6f4(
    float (&d)[4],
    const u32 (&a)[4],
    const u32 (&b)[2],
    MmaScale<kAByte, kAThread> a_scale,
    MmaScale<kBByte, kBThread> b_scale
) {
    mma_mxf8f6f4<kA, kB>(d, a, b, 0, a_scale, b_scale);
}

template <bool kIsNvf4, int kAByte, int kAThread, int kBByte, int kBThread, int kWords>
__device__ __forceinline__ void mma_mxf4(
    float (&d)[4],
    const u32 (&a)[4],
    const u32 (&b)[kWords],
    u32 metadata,
    MmaScale<kAByte, kAThread> a_scale,
    MmaScale<kBByte, kBThread> b_scale
) {
    using tmaasync_emulate::Tcgen05Kind;
    constexpr auto kKind = kIsNvf4 ? Tcgen05Kind::kMXF4NVF4 : Tcgen05Kind::kMXF4;
    constexpr u32 kInstruction = 1 << 7 | 1 << 10 | (kIsNvf4 ? 0 : kScalesOfE8M0);
    multiply_by_warp<kKind, kIsNvf4 ? 4 : 2>(
        kInstruction, d, a, b, metadata, scales_of(a_scale, b_scale)
    );
}
template <bool kIsNvf4, int kAByte, int kAThread, int kBByte, int kBThread>
__device__ __forceinline__ void mma_mxf4(
    float (&d)[4],
    const u32 (&a)[4],
    const u32 (&b)[2],
    MmaScale<kAByte, kAThread> a_scale,
    MmaScale<kBByte, kBThread> b_scale
) {
    mma_mxf4<kIsNvf4>(d, a, b, 0, a_scale, b_scale);
}

}  // namespace tmaasync::ptx
