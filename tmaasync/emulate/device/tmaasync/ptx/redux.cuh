#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/inline_ptx/threads.hpp>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

template <bool kIsMax, bool kAbs = false, bool kKeepsNan = false>
__device__ __forceinline__ float redux_sync_f32(float value, u32 mask) {
    tmaasync_emulate::check_redux_f32();
    return tmaasync_emulate::inline_ptx::reduced_floats<kIsMax, kAbs, kKeepsNan>(value, mask);
}

}  // namespace tmaasync::ptx
