#pragma once

// The operations of a fused epilogue. The host defines
//
//   Bias          element type of the bias
//   BIAS          the number of a BiasSide
//   ACTIVATION    the number of an Activation
#include <tmaasync/structured/epilogue_ops.cuh>

#include "config.cuh"

namespace tmaasync::kernels::gemm {

// The side of the output along which the bias runs.
enum class BiasSide { kNone, kColumns, kRows };

constexpr BiasSide kBiasSide = static_cast<BiasSide>(BIAS);

using FusedActivation = Activate<static_cast<Activation>(ACTIVATION)>;

}  // namespace tmaasync::kernels::gemm
