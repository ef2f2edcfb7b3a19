#pragma once

#include <tmaasync/operands/integers.cuh>

// Floats of 4 to 8 bits, and how instructions name them.
namespace tmaasync::ptx {

enum class SmallFloat { kE4M3, kE5M2, kE2M3, kE3M2, kE2M1 };

// The names, as variables: the constraint "C" takes no literals.
struct SmallFloatNames {
    static constexpr char kE4M3[] = "e4m3";
    static constexpr char kE5M2[] = "e5m2";
    static constexpr char kE2M3[] = "e2m3";
    static constexpr char kE3M2[] = "e3m2";
    static constexpr char kE2M1[] = "e2m1";
    static constexpr char kNone[] = "";
    static constexpr char kRelu[] = ".relu";
    static constexpr char kSatfinite[] = ".satfinite";
    static constexpr char kUp[] = "rp";
    static constexpr char kDown[] = "rz";
};

__device__ constexpr const char* name_of(SmallFloat value) {
    switch (value) {
        case SmallFloat::kE4M3:
            return SmallFloatNames::kE4M3;
        case SmallFloat::kE5M2:
            return SmallFloatNames::kE5M2;
        case SmallFloat::kE2M3:
            return SmallFloatNames::kE2M3;
        case SmallFloat::kE3M2:
            return SmallFloatNames::kE3M2;
        case SmallFloat::kE2M1:
            break;
    }
    return SmallFloatNames::kE2M1;
}

__device__ constexpr const char* name_of_relu(bool relu) {
    return relu ? SmallFloatNames::kRelu : SmallFloatNames::kNone;
}

}  // namespace tmaasync::ptx
