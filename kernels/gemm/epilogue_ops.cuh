#pragma once

// The operations of a fused epilogue. The host defines
//
//   Bias          element type of the bias
//   BIAS          the number of a BiasSide
//   ACTIVATION    the number of an Activation
#include <tmaasync/structured/epilogue_ops.cuh>

#include "bias_side.cuh"
#include "config.cuh"

namespace tmaasync::kernels::gemm {

using FusedActivation = Activate<static_cast<Activation>(ACTIVATION)>;

}  // namespace tmaasync::kernels::gemm
