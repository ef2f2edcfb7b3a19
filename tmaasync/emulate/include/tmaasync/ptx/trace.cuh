#pragma once

#include <tmaasync/ptx/integers.cuh>

// The emulator keeps traces by itself.
namespace tmaasync::ptx {

constexpr bool kIsTraced = false;

__device__ __forceinline__ u32 trace_clock() {
    return 0;
}

__device__ __forceinline__ void trace_phase_wait(u32, u32, bool, u32) {}

}  // namespace tmaasync::ptx
