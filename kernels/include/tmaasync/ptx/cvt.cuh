#pragma once

#include <tmaasync/operands/small_floats.cuh>

// PTX ISA: "cvt" of packed floats. Of two values the first becomes the upper half of the result.
// e2m1, e2m3, e3m2 and ue8m0 need sm_100a, sm_103a or sm_120a; stochastic rounding (rs) sm_100a or
// sm_103a. Floats of 6 bits lie in a byte each.
namespace tmaasync::ptx {

// Two floats, rounded to the nearest; beyond the largest number, to that.
template <SmallFloat kTo, bool kRelu = false>
__device__ __forceinline__ u32 cvt_rn_satfinite_x2(float high, float low) {
    u32 pair;
    if constexpr (kTo == SmallFloat::kE2M1) {
        asm("{\n\t.reg .b8 d;\n\t.reg .b16 h;\n\tcvt.rn.satfinite%3.e2m1x2.f32 d, %1, %2;\n\t"
            "mov.b16 h, {d, 0};\n\tcvt.u32.u16 %0, h;\n\t}"
            : "=r"(pair)
            : "f"(high), "f"(low), "C"(name_of_relu(kRelu)));
    } else {
        asm("{\n\t.reg .b16 d;\n\tcvt.rn.satfinite%3.%4x2.f32 d, %1, %2;\n\t"
            "cvt.u32.u16 %0, d;\n\t}"
            : "=r"(pair)
            : "f"(high), "f"(low), "C"(name_of_relu(kRelu)), "C"(name_of(kTo)));
    }
    return pair;
}

// A pair as two halves (f16x2).
template <SmallFloat kFrom, bool kRelu = false>
__device__ __forceinline__ u32 cvt_rn_f16x2(u32 pair) {
    u32 halves;
    if constexpr (kFrom == SmallFloat::kE2M1) {
        asm("{\n\t.reg .b8 d, x;\n\t.reg .b16 h;\n\tcvt.u16.u32 h, %1;\n\tmov.b16 {d, x}, h;\n\t"
            "cvt.rn%2.f16x2.e2m1x2 %0, d;\n\t}"
            : "=r"(halves)
            : "r"(pair), "C"(name_of_relu(kRelu)));
    } else {
        asm("{\n\t.reg .b16 d;\n\tcvt.u16.u32 d, %1;\n\tcvt.rn%2.f16x2.%3x2 %0, d;\n\t}"
            : "=r"(halves)
            : "r"(pair), "C"(name_of_relu(kRelu)), "C"(name_of(kFrom)));
    }
    return halves;
}

// Scale factors: powers of two not below the magnitudes (kRoundsUp), or not above them.
template <bool kRoundsUp = true>
__device__ __forceinline__ u32 cvt_satfinite_ue8m0x2(float high, float low) {
    u32 pair;
    asm("{\n\t.reg .b16 d;\n\tcvt.%3.satfinite.ue8m0x2.f32 d, %1, %2;\n\tcvt.u32.u16 %0, d;\n\t}"
        : "=r"(pair)
        : "f"(high), "f"(low), "C"(kRoundsUp ? SmallFloatNames::kUp : SmallFloatNames::kDown));
    return pair;
}

// Stochastic rounding: up where the bits of `random` and the part that is cut have a carry.
template <bool kRelu = false>
__device__ __forceinline__ u32 cvt_rs_satfinite_f16x2(float high, float low, u32 random) {
    u32 pair;
    asm("cvt.rs%4.satfinite.f16x2.f32 %0, %1, %2, %3;"
        : "=r"(pair)
        : "f"(high), "f"(low), "r"(random), "C"(name_of_relu(kRelu)));
    return pair;
}

template <bool kRelu = false>
__device__ __forceinline__ u32 cvt_rs_satfinite_bf16x2(float high, float low, u32 random) {
    u32 pair;
    asm("cvt.rs%4.satfinite.bf16x2.f32 %0, %1, %2, %3;"
        : "=r"(pair)
        : "f"(high), "f"(low), "r"(random), "C"(name_of_relu(kRelu)));
    return pair;
}

// Four floats, the first uppermost.
template <SmallFloat kTo, bool kRelu = false>
__device__ __forceinline__ u32 cvt_rs_satfinite_x4(const float (&values)[4], u32 random) {
    u32 four;
    if constexpr (kTo == SmallFloat::kE2M1) {
        asm("{\n\t.reg .b16 d;\n\tcvt.rs%6.satfinite.e2m1x4.f32 d, {%1, %2, %3, %4}, %5;\n\t"
            "cvt.u32.u16 %0, d;\n\t}"
            : "=r"(four)
            : "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(random),
              "C"(name_of_relu(kRelu)));
    } else {
        asm("cvt.rs%6.satfinite.%7x4.f32 %0, {%1, %2, %3, %4}, %5;"
            : "=r"(four)
            : "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(random),
              "C"(name_of_relu(kRelu)), "C"(name_of(kTo)));
    }
    return four;
}

}  // namespace tmaasync::ptx
