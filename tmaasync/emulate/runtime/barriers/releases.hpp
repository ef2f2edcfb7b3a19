// The arrivals that release a stage, for reports.
#pragma once

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// The CTA of a warp of the cluster.
uint32_t rank_of(const Cluster& cluster, uint32_t warp);

// Names a CTA if the cluster has several: " of CTA 1 of the cluster".
Reason in_cluster(const Cluster& cluster, const Cta& cta);

// Adds "warps 0, 1 of CTA 1 of the cluster, warp 2 of CTA 2 of the cluster".
void add_warps(Reason& reason, const Fiber& issuer, const Arrived& arrived);

// The thread waited on a barrier on which more threads arrive than init() counts.
Reason too_few_counted(const Fiber& issuer, const EndedWait& wait);

// A barrier gets one arrival too many, and its phase waits for bytes: the arrivals on the barrier
// for which the thread waited came before a wait for this phase. Nothing if they did not.
Reason released_unfilled(
    const Fiber& fiber, const Cta& owner, const Mbarrier& barrier, uint32_t count
);

}  // namespace tmaasync_emulate
