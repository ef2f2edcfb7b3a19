#pragma once

#include <tmaasync/ptx/integers.cuh>

// Every function of the generated header, for any legal number of accumulators.
namespace tmaasync::ptx {

template <int kAccumulators>
__device__ __forceinline__ void emulated_mma(
    float (&d)[kAccumulators], tmaasync_emulate::Mma mma, u64 b, u32 scale_d
) {
    static_assert(kAccumulators % 4 == 0 && kAccumulators <= 128, "N is 8, 16, ... 256");
    mma.sums = d;
    mma.columns = kAccumulators * 2;
    mma.b = b;
    mma.accumulates = scale_d != 0;
    tmaasync_emulate::mma_issue(mma);
}

template <int kTransposeA, int kTransposeB, int kAccumulators>
__device__ __forceinline__ void wgmma_mma_async_bf16_ss(
    float (&d)[kAccumulators], u64 a, u64 b, u32 scale_d
) {
    tmaasync_emulate::Mma mma{};
    mma.a = a;
    mma.a_transposed = kTransposeA;
    mma.b_transposed = kTransposeB;
    emulated_mma(d, mma, b, scale_d);
}

template <int kTransposeA, int kTransposeB, int kAccumulators>
__device__ __forceinline__ void wgmma_mma_async_f16_ss(
    float (&d)[kAccumulators], u64 a, u64 b, u32 scale_d
) {
    tmaasync_emulate::Mma mma{};
    mma.is_half = true;
    mma.a = a;
    mma.a_transposed = kTransposeA;
    mma.b_transposed = kTransposeB;
    emulated_mma(d, mma, b, scale_d);
}

template <int kTransposeB, int kAccumulators>
__device__ __forceinline__ void wgmma_mma_async_bf16_rs(
    float (&d)[kAccumulators], const u32 (&a)[4], u64 b, u32 scale_d
) {
    tmaasync_emulate::Mma mma{};
    mma.a_in_registers = true;
    for (int i = 0; i < 4; ++i) mma.a_registers[i] = a[i];
    mma.b_transposed = kTransposeB;
    emulated_mma(d, mma, b, scale_d);
}

template <int kTransposeB, int kAccumulators>
__device__ __forceinline__ void wgmma_mma_async_f16_rs(
    float (&d)[kAccumulators], const u32 (&a)[4], u64 b, u32 scale_d
) {
    tmaasync_emulate::Mma mma{};
    mma.is_half = true;
    mma.a_in_registers = true;
    for (int i = 0; i < 4; ++i) mma.a_registers[i] = a[i];
    mma.b_transposed = kTransposeB;
    emulated_mma(d, mma, b, scale_d);
}

}  // namespace tmaasync::ptx
