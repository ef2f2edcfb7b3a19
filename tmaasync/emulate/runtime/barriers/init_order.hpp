// The order of an mbarrier's initialisation and its uses.
#pragma once

#include "state/cta.hpp"

namespace tmaasync_emulate {

// Checks a thread's use of a barrier: the init happens before it, or the init's fence precedes a
// relaxed arrival (as of barrier.cluster.arrive.relaxed) that the thread has waited for.
void check_init_is_seen(
    Fiber& fiber, const Cta& home, const Mbarrier& barrier, Operation use = Operation::kBarrierUse
);

// Checks TMA's use of a barrier: a fence made the init visible to the async proxy.
void check_init_is_fenced(Fiber& fiber, const Cta& home, const Mbarrier& barrier);

void fence_inits(Fiber& fiber);

}  // namespace tmaasync_emulate
