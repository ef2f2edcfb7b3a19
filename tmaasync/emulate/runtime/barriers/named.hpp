// The named barriers of a CTA, and __syncthreads().
#pragma once

#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Completes the barrier if all threads have arrived; in one of the whole CTA, all live threads.
void release_if_complete(Cluster& cluster, Cta& cta, uint32_t number);

// `threads` 0 means all of the CTA. `line` 0 means that the line of the call is unknown.
void arrive_at_named(
    Fiber& fiber, uint32_t number, uint32_t threads, bool waits, uint32_t line = 0
);

// __syncthreads_count. A CTA's votes use three counters in rotation. A thread that has completed
// one vote clears the counter of the vote after the next, which no thread can have begun.
uint32_t count_at_barrier(Fiber& fiber, bool value, uint32_t line);

}  // namespace tmaasync_emulate
