#pragma once

namespace tmaasync::kernels::gemm {

// The side of the output along which the bias runs.
enum class BiasSide { kNone, kColumns, kRows };

constexpr BiasSide kBiasSide = static_cast<BiasSide>(BIAS);

// The bias of a row or column, of `count`; beyond them 0.
template <typename T>
__device__ __forceinline__ float bias_at(const T* bias, int index, int count) {
    return index < count ? static_cast<float>(bias[index]) : 0.0f;
}

}  // namespace tmaasync::kernels::gemm
