#pragma once

#include <tmaasync/operands/integers.cuh>

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

}  // namespace tmaasync::ptx
