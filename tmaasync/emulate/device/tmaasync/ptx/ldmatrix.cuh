#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

template <typename... Registers>
__device__ __forceinline__ void emulated_ldmatrix(u32 row, bool transposes, Registers&... m) {
    u32 values[sizeof...(m)];
    tmaasync_emulate::load_matrix(row, sizeof...(m), transposes, values);
    const u32* next = values;
    ((m = *next++), ...);
}

__device__ __forceinline__ void ldmatrix_x1(u32 row, u32& m0) {
    emulated_ldmatrix(row, false, m0);
}

__device__ __forceinline__ void ldmatrix_x2(u32 row, u32& m0, u32& m1) {
    emulated_ldmatrix(row, false, m0, m1);
}

__device__ __forceinline__ void ldmatrix_x4(u32 row, u32& m0, u32& m1, u32& m2, u32& m3) {
    emulated_ldmatrix(row, false, m0, m1, m2, m3);
}

__device__ __forceinline__ void ldmatrix_x1_trans(u32 row, u32& m0) {
    emulated_ldmatrix(row, true, m0);
}

__device__ __forceinline__ void ldmatrix_x2_trans(u32 row, u32& m0, u32& m1) {
    emulated_ldmatrix(row, true, m0, m1);
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32 row, u32& m0, u32& m1, u32& m2, u32& m3) {
    emulated_ldmatrix(row, true, m0, m1, m2, m3);
}

template <int kMatrices>
__device__ __forceinline__ void ldmatrix_b8_trans(u32 row, u32 (&m)[2 * kMatrices]) {
    static_assert(kMatrices == 1 || kMatrices == 2, "1 or 2 matrices");
    tmaasync_emulate::check_byte_matrices();
    tmaasync_emulate::load_byte_matrix(
        row, kMatrices, tmaasync_emulate::ByteMatrix::kTransposed, m
    );
}

template <int kBits, int kMatrices>
__device__ __forceinline__ void ldmatrix_b8x16(u32 row, u32 (&m)[kMatrices]) {
    using tmaasync_emulate::ByteMatrix;
    static_assert(kBits == 4 || kBits == 6, "elements of 4 or 6 bits");
    static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4, "1, 2 or 4 matrices");
    tmaasync_emulate::check_byte_matrices();
    constexpr auto kForm = kBits == 4 ? ByteMatrix::kFrom4Bits : ByteMatrix::kFrom6Bits;
    tmaasync_emulate::load_byte_matrix(row, kMatrices, kForm, m);
}

}  // namespace tmaasync::ptx
