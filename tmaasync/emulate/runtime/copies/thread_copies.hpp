// cp.async: copies that each thread makes for itself, in its own groups or counted by an mbarrier.
//
// For the race detector, the copies of a thread are a separate agent. They happen after the
// thread's earlier accesses, and before nothing but a wait for them. They belong to the generic
// proxy (PTX ISA: only bulk copies and wgmma belong to the async proxy).
#pragma once

#include <cstddef>
#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Lands all copies that were issued up to this epoch.
void land_thread_copies(Fiber& fiber, Epoch epoch);

// Arrives on the barrier for a thread's copies, which then happen before a wait for the phase.
void arrive_for_copies(Cluster& cluster, const Flight& flight, Mbarrier& barrier);

void issue_thread_copy(Fiber& fiber, ThreadCopy copy);

void commit_thread_copies(Fiber& fiber);

void wait_for_thread_copies(Fiber& fiber, std::size_t pending);

// The arrival is in flight like a copy. It lands at any time, after the copies that were issued
// before it.
void arrive_after_thread_copies(Fiber& fiber, uint32_t address, bool raises);

// Called at the end of a thread: every copy was waited for, or an arrival in flight covers it.
void check_thread_copies_are_awaited(Fiber& fiber);

}  // namespace tmaasync_emulate
