#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

__device__ __forceinline__ void stmatrix_x1(u32 row, u32 m0) {
    const u32 values[] = {m0};
    tmaasync_emulate::store_matrix(row, 1, false, values);
}

__device__ __forceinline__ void stmatrix_x2(u32 row, u32 m0, u32 m1) {
    const u32 values[] = {m0, m1};
    tmaasync_emulate::store_matrix(row, 2, false, values);
}

__device__ __forceinline__ void stmatrix_x4(u32 row, u32 m0, u32 m1, u32 m2, u32 m3) {
    const u32 values[] = {m0, m1, m2, m3};
    tmaasync_emulate::store_matrix(row, 4, false, values);
}

__device__ __forceinline__ void stmatrix_x1_trans(u32 row, u32 m0) {
    const u32 values[] = {m0};
    tmaasync_emulate::store_matrix(row, 1, true, values);
}

__device__ __forceinline__ void stmatrix_x2_trans(u32 row, u32 m0, u32 m1) {
    const u32 values[] = {m0, m1};
    tmaasync_emulate::store_matrix(row, 2, true, values);
}

__device__ __forceinline__ void stmatrix_x4_trans(u32 row, u32 m0, u32 m1, u32 m2, u32 m3) {
    const u32 values[] = {m0, m1, m2, m3};
    tmaasync_emulate::store_matrix(row, 4, true, values);
}

template <int kMatrices>
__device__ __forceinline__ void stmatrix_b8_trans(u32 row, const u32 (&m)[kMatrices]) {
    static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4, "1, 2 or 4 matrices");
    tmaasync_emulate::check_byte_matrices();
    tmaasync_emulate::store_byte_matrix(row, kMatrices, m);
}

}  // namespace tmaasync::ptx
