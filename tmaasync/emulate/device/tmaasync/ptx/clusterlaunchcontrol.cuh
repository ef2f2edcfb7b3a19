#pragma once

#include <tmaasync/operands/cluster_response.cuh>
#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void clusterlaunchcontrol_try_cancel(u32 response, u32 barrier) {
    tmaasync_emulate::try_cancel(response, barrier, false);
}

__device__ __forceinline__ void clusterlaunchcontrol_try_cancel_multicast(
    u32 response, u32 barrier
) {
    tmaasync_emulate::try_cancel(response, barrier, true);
}

__device__ __forceinline__ bool clusterlaunchcontrol_is_canceled(ClusterResponse response) {
    return tmaasync_emulate::is_canceled(reinterpret_cast<const u32*>(&response));
}

__device__ __forceinline__ Ctaid clusterlaunchcontrol_first_ctaid(ClusterResponse response) {
    const uint3 first = tmaasync_emulate::first_ctaid(reinterpret_cast<const u32*>(&response));
    return {first.x, first.y, first.z};
}

}  // namespace tmaasync::ptx
