#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::instrument {

constexpr u32 kNoNumber = ~0u;

// Keeps the role of the calling warp, for reports and traces.
__device__ __forceinline__ void note_role(const char* name, u32 number) {
    tmaasync_emulate::set_role(name, number);
}

}  // namespace tmaasync::instrument
