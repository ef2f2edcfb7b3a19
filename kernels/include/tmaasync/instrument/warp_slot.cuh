#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/special_registers.cuh>

// One element per warp slot of every SM, for tables of debug builds.
namespace tmaasync::instrument {

// More SMs than any Hopper GPU has (132 on an H200).
constexpr u32 kMostSms = 160;
constexpr u32 kWarpsOfSm = 64;
constexpr u32 kWarpSlots = kMostSms * kWarpsOfSm;

__device__ __forceinline__ u32 warp_slot() {
    return ptx::smid() % kMostSms * kWarpsOfSm + ptx::warpid() % kWarpsOfSm;
}

}  // namespace tmaasync::instrument
