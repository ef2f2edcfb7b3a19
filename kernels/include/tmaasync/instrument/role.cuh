#pragma once

#include <tmaasync/operands/integers.cuh>

#if defined(TMAASYNC_DEBUG) && TMAASYNC_DEBUG
#include <tmaasync/ptx/special_registers.cuh>
#endif
#if defined(TMAASYNC_TRACE) && TMAASYNC_TRACE
#include <tmaasync/instrument/trace_records.cuh>
#endif

// The roles of warps, for hang reports of debug builds and for traces; in other builds nothing. The
// emulator replaces this header.
namespace tmaasync::instrument {

// The number of a role that no other warp of the CTA has.
constexpr u32 kNoNumber = ~0u;

#if defined(TMAASYNC_DEBUG) && TMAASYNC_DEBUG

// The tables of debug builds have one element per warp slot of every SM.
// More SMs than any Hopper GPU has (132 on an H200).
constexpr u32 kMostSms = 160;
constexpr u32 kWarpsOfSm = 64;
constexpr u32 kWarpSlots = kMostSms * kWarpsOfSm;

__device__ __forceinline__ u32 warp_slot() {
    return ptx::smid() % kMostSms * kWarpsOfSm + ptx::warpid() % kWarpsOfSm;
}

// The role of the warp in a slot of an SM. Block and warp show whether a warp before left it.
struct WarpRole {
    const char* name;
    u32 number;
    u32 block;
    u32 warp;
};
inline __device__ WarpRole tmaasync_roles[kWarpSlots];

__device__ __forceinline__ u32 block_number() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

__device__ __forceinline__ u32 warp_number() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32;
}

__device__ __forceinline__ void keep_role(const char* name, u32 number) {
    tmaasync_roles[warp_slot()] = {name, number, block_number(), warp_number()};
}

// The role of this warp; its name is null if the warp has none.
__device__ __forceinline__ WarpRole role_of_warp() {
    const WarpRole role = tmaasync_roles[warp_slot()];
    if (role.block == block_number() && role.warp == warp_number()) return role;
    return {nullptr, kNoNumber, 0, 0};
}

#else

__device__ constexpr void keep_role(const char*, u32) {}

#endif

#if defined(TMAASYNC_TRACE) && TMAASYNC_TRACE

__device__ __forceinline__ void trace_role(const char* name, u32 number) {
    const u32 block = trace_block();
    if (block >= tmaasync_trace.blocks) return;
    const u64 index = static_cast<u64>(block) * trace_warps() + trace_thread() / 32;
    TraceWarp& home = tmaasync_trace.warps[index];
    for (int i = 0; i < kTraceRoleBytes - 1 && name[i]; ++i) home.role[i] = name[i];
    home.role_number = number;
}

#else

__device__ constexpr void trace_role(const char*, u32) {}

#endif

__device__ __forceinline__ void note_role(const char* name, u32 number) {
    keep_role(name, number);
    trace_role(name, number);
}

}  // namespace tmaasync::instrument
