// The missing step of a race with a TMA load, where the past of its barriers shows it.
#pragma once

#include "races/race.hpp"
#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Returns nothing if the two accesses alone decide.
Reason cause_of_load_race(const Cluster& cluster, const Race& race);

// A barrier gets one arrival too many, and its phase waits for bytes: the arrivals on the barrier
// for which the thread waited came before a wait for this phase. Nothing if they did not.
Reason released_unfilled(
    const Fiber& fiber, const Cta& owner, const Mbarrier& barrier, uint32_t count
);

}  // namespace tmaasync_emulate
