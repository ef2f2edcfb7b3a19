#pragma once

#include <tmaasync/operands/wgmma_forms.cuh>

// PTX ISA: "mma.sync" of 16 rows, 8 columns and 32 bytes of K, by the 32 lanes of a warp. A lane
// has the elements of A and of the accumulators that it has in wgmma: A in four words, and four
// floats, four ints, or two words of two fp16 each. B is two words.
namespace tmaasync::ptx {

template <MmaType kA, MmaType kB>
__device__ __forceinline__ void mma_m16n8(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
    using Form = MmaForm<float, kA, kB, 0, 0, 1, 1>;
    asm volatile(
        "mma.sync.aligned.m16n8%10.row.col.f32%11%12.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "C"(Form::Depth::letters),
          "C"(Form::NameA::letters), "C"(Form::NameB::letters)
    );
}

template <MmaType kA, MmaType kB>
__device__ __forceinline__ void mma_m16n8(int* d, const u32 (&a)[4], u32 b0, u32 b1) {
    using Form = MmaForm<int, kA, kB, 0, 0, 1, 1>;
    asm volatile(
        "mma.sync.aligned.m16n8%10.row.col.s32%11%12.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "C"(Form::Depth::letters),
          "C"(Form::NameA::letters), "C"(Form::NameB::letters)
    );
}

template <MmaType kA, MmaType kB>
__device__ __forceinline__ void mma_m16n8(u32* d, const u32 (&a)[4], u32 b0, u32 b1) {
    using Form = MmaForm<u32, kA, kB, 0, 0, 1, 1>;
    asm volatile(
        "mma.sync.aligned.m16n8%8.row.col.f16%9%10.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
        "{%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "C"(Form::Depth::letters),
          "C"(Form::NameA::letters), "C"(Form::NameB::letters)
    );
}

}  // namespace tmaasync::ptx
