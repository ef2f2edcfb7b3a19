#pragma once

namespace tmaasync::kernels::gemm {

// The side of the output along which the bias runs.
enum class BiasSide { kNone, kColumns, kRows };

constexpr BiasSide kBiasSide = static_cast<BiasSide>(BIAS);

}  // namespace tmaasync::kernels::gemm
