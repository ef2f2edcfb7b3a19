#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "stmatrix". Lane l gives the shared address of row l % 8 of matrix l / 8, and holds
// elements 2 * (l % 4) and the next one of row l / 4 of every matrix; with _trans, of column l / 4.
namespace tmaasync::ptx {

__device__ __forceinline__ void stmatrix_x1(u32 row, u32 m0) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared::cta.b16 [%0], {%1};"
                 :
                 : "r"(row), "r"(m0)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_x2(u32 row, u32 m0, u32 m1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared::cta.b16 [%0], {%1, %2};"
                 :
                 : "r"(row), "r"(m0), "r"(m1)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_x4(u32 row, u32 m0, u32 m1, u32 m2, u32 m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(row), "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_x1_trans(u32 row, u32 m0) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared::cta.b16 [%0], {%1};"
                 :
                 : "r"(row), "r"(m0)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_x2_trans(u32 row, u32 m0, u32 m1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 [%0], {%1, %2};"
                 :
                 : "r"(row), "r"(m0), "r"(m1)
                 : "memory");
}

__device__ __forceinline__ void stmatrix_x4_trans(u32 row, u32 m0, u32 m1, u32 m2, u32 m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(row), "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

// Matrices of 16 x 8 bytes, transposed (sm_100a, sm_103a, sm_120a).
template <int kMatrices>
__device__ __forceinline__ void stmatrix_b8_trans(u32 row, const u32 (&m)[kMatrices]) {
    static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4, "1, 2 or 4 matrices");
    if constexpr (kMatrices == 1) {
        asm volatile("stmatrix.sync.aligned.m16n8.x1.trans.shared::cta.b8 [%0], {%1};"
                     :
                     : "r"(row), "r"(m[0])
                     : "memory");
    } else if constexpr (kMatrices == 2) {
        asm volatile("stmatrix.sync.aligned.m16n8.x2.trans.shared::cta.b8 [%0], {%1, %2};"
                     :
                     : "r"(row), "r"(m[0]), "r"(m[1])
                     : "memory");
    } else {
        asm volatile("stmatrix.sync.aligned.m16n8.x4.trans.shared::cta.b8 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(row), "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                     : "memory");
    }
}

}  // namespace tmaasync::ptx
