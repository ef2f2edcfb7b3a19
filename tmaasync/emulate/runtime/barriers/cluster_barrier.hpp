// The barrier of a cluster: barrier.cluster.arrive and barrier.cluster.wait.
#pragma once

#include "state/cluster.hpp"

namespace tmaasync_emulate {

void arrive_at_cluster(Fiber& fiber, bool releases);

void wait_for_cluster(Fiber& fiber);

// Completes the barrier if all live threads have arrived.
void complete_cluster_barrier(Cluster& cluster);

}  // namespace tmaasync_emulate
