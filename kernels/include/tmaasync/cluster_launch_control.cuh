#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/operands/cluster_response.cuh>
#include <tmaasync/ptx/clusterlaunchcontrol.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/ptx/shared.cuh>

// Cluster launch control, of sm_100a, 103a and 120a: a dynamic persistent scheduler whose tiles are
// the clusters of the grid. A running cluster cancels one that has not started, and does its work.
namespace tmaasync {

// The answer to a request.
struct CanceledCluster {
    bool exists;       // false: the grid has no cluster left to give; end the loop
    ptx::Ctaid first;  // position of the cluster's first block in the grid; 0 without a cluster
};

// A request and its answer, in shared memory; one for each request in flight. In every phase one
// thread asks, and every reader waits:
//
//     if (is_leader) request.ask();
//     // work on the present cluster
//     const CanceledCluster next = request.wait(phase);
//     __syncthreads();
//
// In a cluster of several blocks, every block calls expect(), the first one asks for all with
// ask_for_all(), and cluster_sync() replaces __syncthreads().
struct ClusterRequest {
    static constexpr u32 kBytes = sizeof(ptx::ClusterResponse);

    ptx::ClusterResponse response;
    SharedMemBarrier answered;

    // By one thread; then fence_barrier_init() and a block (or cluster) barrier before any use.
    __device__ __forceinline__ void init() { answered.init(1); }

    // Ask for a cluster, by one thread of a cluster of one block.
    __device__ __forceinline__ void ask() {
        expect();
        ptx::clusterlaunchcontrol_try_cancel(ptx::shared_address(&response), answered.address());
    }

    // Expect the answer in this block, by one thread.
    __device__ __forceinline__ void expect() { answered.expect_bytes(kBytes); }

    // Ask for a cluster, by one thread of the present cluster. Every block gets the answer.
    __device__ __forceinline__ void ask_for_all() {
        ptx::clusterlaunchcontrol_try_cancel_multicast(
            ptx::shared_address(&response), answered.address()
        );
    }

    // Wait for the answer, by every thread that reads it. Another one may be asked for after a
    // block (or cluster) barrier.
    __device__ __forceinline__ CanceledCluster wait(u32 phase) const {
        answered.wait(phase);
        ptx::ClusterResponse read;
        ptx::ld_shared_v2(ptx::shared_address(&response), read.low, read.high);
        ptx::fence_proxy_async_shared();
        if (!ptx::clusterlaunchcontrol_is_canceled(read)) return {false, {0, 0, 0}};
        return {true, ptx::clusterlaunchcontrol_first_ctaid(read)};
    }
};

}  // namespace tmaasync
