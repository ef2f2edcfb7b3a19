#pragma once

#include <tmaasync/operands/target.cuh>
#include <tmaasync/operands/wgmma_forms.cuh>

// PTX ISA: "mma.sync" of 16 rows, 8 columns and 32 bytes of K, by the 32 lanes of a warp. A lane
// has the elements of A and of the accumulators that it has in wgmma: A in four words, and four
// floats, four ints, or two words of two fp16 each. B is two words.
namespace tmaasync::ptx {

// Two FP8 elements as fp16, which holds each exactly.
template <MmaType kType>
__device__ __forceinline__ u32 float8_to_half(u32 pair) {
    const auto bits = static_cast<unsigned short>(pair);
    u32 halves;
    asm("cvt.rn.f16x2%2x2 %0, %1;"
        : "=r"(halves)
        : "h"(bits), "C"(MmaOperand<kType>::Name::letters));
    return halves;
}

template <MmaType kA, MmaType kB>
__device__ __forceinline__ void mma_m16n8(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (kConvertsFp8 && is_float8(kA)) {
        // ptxas would add the sum of each 32 elements to the accumulators with FADD. The order of
        // K is free: a word's four elements are both halves of K of one fp16 instruction.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 word = half == 0 ? b0 : b1;
            const u32 rows[4] = {
                float8_to_half<kA>(a[2 * half]), float8_to_half<kA>(a[2 * half + 1]),
                float8_to_half<kA>(a[2 * half] >> 16), float8_to_half<kA>(a[2 * half + 1] >> 16)
            };
            const u32 first = float8_to_half<kB>(word), second = float8_to_half<kB>(word >> 16);
            mma_m16n8<MmaType::kF16, MmaType::kF16>(d, rows, first, second);
        }
    } else {
        using Form = MmaForm<float, kA, kB, 0, 0, 1, 1>;
        asm volatile(
            "mma.sync.aligned.m16n8%10.row.col.f32%11%12.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1),
              "C"(Form::Depth::letters), "C"(Form::NameA::letters), "C"(Form::NameB::letters)
        );
    }
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
