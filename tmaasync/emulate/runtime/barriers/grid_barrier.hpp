// The barrier of a cooperative grid: sync_grid() and cooperative_groups::grid_group.
#pragma once

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// The barrier's word; a fault in a launch that is not cooperative.
uint32_t* grid_barrier_of(Fiber& fiber);

// Arrives for a block. Returns the number of completed phases.
uint32_t arrive_at_grid(Fiber& fiber);

// Waits for the phase in which the thread has arrived.
void wait_for_grid(Fiber& fiber, uint32_t phase);

}  // namespace tmaasync_emulate
