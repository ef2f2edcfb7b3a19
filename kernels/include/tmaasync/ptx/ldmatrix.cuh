#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "ldmatrix". Lane l gives the shared address of row l % 8 of matrix l / 8, and gets
// elements 2 * (l % 4) and the next one of row l / 4 of every matrix; with _trans, of column l / 4.
namespace tmaasync::ptx {

struct MatrixNames {
    static constexpr char kB4[] = "b4x16_p64";
    static constexpr char kB6[] = "b6x16_p32";
};

__device__ __forceinline__ void ldmatrix_x1(u32 row, u32& m0) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared::cta.b16 {%0}, [%1];"
                 : "=r"(m0)
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(u32 row, u32& m0, u32& m1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared::cta.b16 {%0, %1}, [%2];"
                 : "=r"(m0), "=r"(m1)
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(u32 row, u32& m0, u32& m1, u32& m2, u32& m3) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3)
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x1_trans(u32 row, u32& m0) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared::cta.b16 {%0}, [%1];"
                 : "=r"(m0)
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(u32 row, u32& m0, u32& m1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%0, %1}, [%2];"
                 : "=r"(m0), "=r"(m1)
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32 row, u32& m0, u32& m1, u32& m2, u32& m3) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3)
                 : "r"(row)
                 : "memory");
}

// Matrices of 16 x 16 bytes, transposed: two registers each (sm_100a, sm_103a, sm_120a).
template <int kMatrices>
__device__ __forceinline__ void ldmatrix_b8_trans(u32 row, u32 (&m)[2 * kMatrices]) {
    static_assert(kMatrices == 1 || kMatrices == 2, "1 or 2 matrices");
    if constexpr (kMatrices == 1) {
        asm volatile("ldmatrix.sync.aligned.m16n16.x1.trans.shared::cta.b8 {%0, %1}, [%2];"
                     : "=r"(m[0]), "=r"(m[1])
                     : "r"(row)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(row)
                     : "memory");
    }
}

// Matrices of 8 x 16 elements of 4 or 6 bits, which become bytes; a row has its elements in the
// first 8 or 12 of 16 bytes.
template <int kBits, int kMatrices>
__device__ __forceinline__ void ldmatrix_b8x16(u32 row, u32 (&m)[kMatrices]) {
    static_assert(kBits == 4 || kBits == 6, "elements of 4 or 6 bits");
    static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4, "1, 2 or 4 matrices");
    constexpr const char* kSource = kBits == 4 ? MatrixNames::kB4 : MatrixNames::kB6;
    if constexpr (kMatrices == 1) {
        asm volatile("ldmatrix.sync.aligned.m8n16.x1.shared::cta.b8x16.%2 {%0}, [%1];"
                     : "=r"(m[0])
                     : "r"(row), "C"(kSource)
                     : "memory");
    } else if constexpr (kMatrices == 2) {
        asm volatile("ldmatrix.sync.aligned.m8n16.x2.shared::cta.b8x16.%3 {%0, %1}, [%2];"
                     : "=r"(m[0]), "=r"(m[1])
                     : "r"(row), "C"(kSource)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n16.x4.shared::cta.b8x16.%5 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(row), "C"(kSource)
                     : "memory");
    }
}

}  // namespace tmaasync::ptx
