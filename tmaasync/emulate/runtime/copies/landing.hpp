// Copies into shared memory: their bytes land some time after their issue.
#pragma once

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Writes the bytes, then credits the barrier. Runs in the scheduler, so a fault is reported for the
// issuer but does not stop it.
void land(Cluster& cluster, const Flight& flight);

}  // namespace tmaasync_emulate
