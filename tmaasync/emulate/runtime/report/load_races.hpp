// The missing step of a race with a TMA load, where the past of its barriers shows it.
#pragma once

#include "races/race.hpp"
#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Returns nothing if the two accesses alone decide.
Reason cause_of_load_race(const Cluster& cluster, const Race& race);

}  // namespace tmaasync_emulate
