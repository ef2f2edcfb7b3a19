#include "barriers/cluster_barrier.hpp"

#include "schedule/events.hpp"
#include "schedule/faults.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

void arrive_at_cluster(Fiber& fiber, bool releases) {
    Cluster& cluster = *fiber.cluster;
    if (fiber.has_arrived_at_cluster) {
        fail(fiber, FaultKind::kClusterArrivalTwice);
    }
    if (Detector* detector = cluster.detector.get()) {
        releases ? detector->release(fiber.number, cluster.barrier.gathered)
                 : detector->release_relaxed(fiber.number, cluster.barrier.gathered);
    }
    if (SyncOrder* order = cluster.launch.order) order->arrive_at_cluster(fiber);
    fiber.trace.is_at_cluster = stands_for_warp(fiber);
    if (fiber.trace.is_at_cluster) record(fiber, {.kind = EventKind::kClusterArrive});
    fiber.has_arrived_at_cluster = true;
    ++cluster.barrier.arrived;
    complete_cluster_barrier(cluster);
}

void wait_for_cluster(Fiber& fiber) {
    Cluster& cluster = *fiber.cluster;
    // Completing the barrier clears the flag.
    if (fiber.has_arrived_at_cluster) {
        cluster.barrier.waiters.push_back(&fiber);
        block(fiber, {.kind = Wait::Kind::kCluster, .instruction = "barrier.cluster.wait"});
    }
    if (SyncOrder* order = cluster.launch.order) order->wait_for_cluster(fiber);
    if (cluster.detector) cluster.detector->acquire(fiber.number, cluster.barrier.completed);
    if (fiber.trace.is_at_cluster) record(fiber, {.kind = EventKind::kClusterWaitEnd});
}

void complete_cluster_barrier(Cluster& cluster) {
    ClusterBarrier& barrier = cluster.barrier;
    if (barrier.arrived == 0 || barrier.arrived < cluster.live) return;
    barrier.arrived = 0;
    for (Fiber& fiber : cluster.fibers) fiber.has_arrived_at_cluster = false;
    if (SyncOrder* order = cluster.launch.order) order->complete_cluster(cluster);
    barrier.completed = std::exchange(barrier.gathered, {});
    wake_all(barrier.waiters);
}

}  // namespace tmaasync_emulate
