#pragma once

#include <tmaasync/operands/cluster_response.cuh>
#include <tmaasync/operands/integers.cuh>

// PTX ISA: "clusterlaunchcontrol.try_cancel", "clusterlaunchcontrol.query_cancel", of sm_100a, 103a
// and 120a. A running cluster takes over the work of one that has not started.
namespace tmaasync::ptx {

// Ask for a cluster. The response of 16 bytes, at a multiple of 16, is written by the async proxy
// and credited to the barrier. One thread asks.
__device__ __forceinline__ void clusterlaunchcontrol_try_cancel(u32 response, u32 barrier) {
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], "
        "[%1];" ::"r"(response),
        "r"(barrier)
        : "memory"
    );
}

// The same, with the response at the same shared offset in every CTA of the cluster, each of which
// expects 16 bytes on its own barrier at the same offset. One thread of the cluster asks.
__device__ __forceinline__ void clusterlaunchcontrol_try_cancel_multicast(
    u32 response, u32 barrier
) {
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::"
        "cluster::all.b128 [%0], [%1];" ::"r"(response),
        "r"(barrier)
        : "memory"
    );
}

// True if the response has a cluster.
__device__ __forceinline__ bool clusterlaunchcontrol_is_canceled(ClusterResponse response) {
    u32 is_canceled;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        ".reg .b128 r;\n\t"
        "mov.b128 r, {%1, %2};\n\t"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(is_canceled)
        : "l"(response.low), "l"(response.high)
    );
    return is_canceled;
}

// The first CTA of the response's cluster. Undefined without one.
__device__ __forceinline__ Ctaid clusterlaunchcontrol_first_ctaid(ClusterResponse response) {
    Ctaid first;
    asm volatile(
        "{\n\t"
        ".reg .b128 r;\n\t"
        "mov.b128 r, {%3, %4};\n\t"
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%0, %1, %2, _}, r;\n\t"
        "}"
        : "=r"(first.x), "=r"(first.y), "=r"(first.z)
        : "l"(response.low), "l"(response.high)
    );
    return first;
}

}  // namespace tmaasync::ptx
