// The report of a thread that crashed, or that runs for ever.
#pragma once

#include "crash/crash.hpp"
#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Reports the running thread after the jump to the crash site with this value.
void report_jump(Cluster& cluster, const Crash& crash, int jumped);

}  // namespace tmaasync_emulate
