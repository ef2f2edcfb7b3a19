#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "add", "mul" and "fma" of f32x2 (sm_100a, sm_103a, sm_120a): two floats in 64 bits, each
// rounded to the nearest, or with kToZero towards zero.
namespace tmaasync::ptx {

struct RoundingNames {
    static constexpr char kNearest[] = "rn";
    static constexpr char kToZero[] = "rz";
};

template <bool kToZero = false>
__device__ __forceinline__ u64 add_f32x2(u64 a, u64 b) {
    u64 d;
    asm("add.%3.f32x2 %0, %1, %2;"
        : "=l"(d)
        : "l"(a), "l"(b), "C"(kToZero ? RoundingNames::kToZero : RoundingNames::kNearest));
    return d;
}

template <bool kToZero = false>
__device__ __forceinline__ u64 mul_f32x2(u64 a, u64 b) {
    u64 d;
    asm("mul.%3.f32x2 %0, %1, %2;"
        : "=l"(d)
        : "l"(a), "l"(b), "C"(kToZero ? RoundingNames::kToZero : RoundingNames::kNearest));
    return d;
}

template <bool kToZero = false>
__device__ __forceinline__ u64 fma_f32x2(u64 a, u64 b, u64 c) {
    u64 d;
    asm("fma.%4.f32x2 %0, %1, %2, %3;"
        : "=l"(d)
        : "l"(a), "l"(b), "l"(c), "C"(kToZero ? RoundingNames::kToZero : RoundingNames::kNearest));
    return d;
}

}  // namespace tmaasync::ptx
