// A cluster in which no thread can proceed.
#pragma once

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Called when no thread can proceed.
void report_deadlock(Cluster& cluster);

}  // namespace tmaasync_emulate
