#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void ldmatrix_x1(u32 row, u32& m0) {
    u32 values[1];
    tmaasync_emulate::load_matrix(row, 1, false, values);
    m0 = values[0];
}

__device__ __forceinline__ void ldmatrix_x2(u32 row, u32& m0, u32& m1) {
    u32 values[2];
    tmaasync_emulate::load_matrix(row, 2, false, values);
    m0 = values[0];
    m1 = values[1];
}

__device__ __forceinline__ void ldmatrix_x4(u32 row, u32& m0, u32& m1, u32& m2, u32& m3) {
    u32 values[4];
    tmaasync_emulate::load_matrix(row, 4, false, values);
    m0 = values[0];
    m1 = values[1];
    m2 = values[2];
    m3 = values[3];
}

__device__ __forceinline__ void ldmatrix_x1_trans(u32 row, u32& m0) {
    u32 values[1];
    tmaasync_emulate::load_matrix(row, 1, true, values);
    m0 = values[0];
}

__device__ __forceinline__ void ldmatrix_x2_trans(u32 row, u32& m0, u32& m1) {
    u32 values[2];
    tmaasync_emulate::load_matrix(row, 2, true, values);
    m0 = values[0];
    m1 = values[1];
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32 row, u32& m0, u32& m1, u32& m2, u32& m3) {
    u32 values[4];
    tmaasync_emulate::load_matrix(row, 4, true, values);
    m0 = values[0];
    m1 = values[1];
    m2 = values[2];
    m3 = values[3];
}

}  // namespace tmaasync::ptx
