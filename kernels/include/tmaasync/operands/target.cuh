#pragma once

// Whether the target has wgmma. Blackwell has none: there a warpgroup multiplies with mma.sync
// (warp_mma.cuh).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 900
#define TMAASYNC_HAS_WGMMA false
#else
#define TMAASYNC_HAS_WGMMA true
#endif

// Whether TMA loads may go to shared memory of the cluster. On sm_120a ptxas compiles those that
// may to a branch with a call, because of which it ignores setmaxnreg.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define TMAASYNC_LOADS_INTO_CLUSTER false
#else
#define TMAASYNC_LOADS_INTO_CLUSTER true
#endif

// Whether mma.sync of FP8 is compiled to conversions to fp16, and multiplications of these.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define TMAASYNC_CONVERTS_FP8 true
#else
#define TMAASYNC_CONVERTS_FP8 false
#endif

namespace tmaasync {

constexpr bool kHasWgmma = TMAASYNC_HAS_WGMMA;
constexpr bool kConvertsFp8 = TMAASYNC_CONVERTS_FP8;
constexpr bool kLoadsIntoCluster = TMAASYNC_LOADS_INTO_CLUSTER;

}  // namespace tmaasync
