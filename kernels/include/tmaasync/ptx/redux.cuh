#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "redux.sync" of floats (sm_100a, sm_103a). Every lane of the mask gets the least value
// of all, or the greatest.
namespace tmaasync::ptx {

struct ReduxNames {
    static constexpr char kMin[] = "min";
    static constexpr char kMax[] = "max";
    static constexpr char kAbs[] = ".abs";
    static constexpr char kNan[] = ".NaN";
    static constexpr char kNone[] = "";
};

// kAbs compares magnitudes. NaNs do not count; with kKeepsNan one makes the result NaN.
template <bool kIsMax, bool kAbs = false, bool kKeepsNan = false>
__device__ __forceinline__ float redux_sync_f32(float value, u32 mask) {
    float result;
    asm volatile("redux.sync.%3%4%5.f32 %0, %1, %2;"
                 : "=f"(result)
                 : "f"(value), "r"(mask), "C"(kIsMax ? ReduxNames::kMax : ReduxNames::kMin),
                   "C"(kAbs ? ReduxNames::kAbs : ReduxNames::kNone),
                   "C"(kKeepsNan ? ReduxNames::kNan : ReduxNames::kNone));
    return result;
}

}  // namespace tmaasync::ptx
