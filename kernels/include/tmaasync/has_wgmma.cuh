#pragma once

// Whether the target has wgmma. Blackwell has none: there a warpgroup multiplies with mma.sync
// (warp_mma.cuh).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 900
#define TMAASYNC_HAS_WGMMA false
#else
#define TMAASYNC_HAS_WGMMA true
#endif

namespace tmaasync {

constexpr bool kHasWgmma = TMAASYNC_HAS_WGMMA;

}  // namespace tmaasync
