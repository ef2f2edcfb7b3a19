// The start of a cluster: all of its state as the chip finds it.
#pragma once

#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Starts the cluster of this index.
void start(Cluster& cluster, uint64_t index);

}  // namespace tmaasync_emulate
