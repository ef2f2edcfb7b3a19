// The scheduler as a cluster's threads call it: they wait, yield, poll and wake others.
#pragma once

#include <vector>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Goes back to the scheduler, which resumes the thread when it is ready and its turn comes.
inline void leave(Fiber& fiber) {
    switch_context(fiber.context, fiber.cluster->scheduler);
}

void make_ready(Fiber& fiber);

// Lets others run until another thread wakes this one.
void block(Fiber& fiber, const Wait& wait);

// Lets others run, then goes on. Called by a thread that polls.
void spin(Fiber& fiber, const Wait& wait);

void yield(Fiber& fiber);

// Lets others run now and then, if the policy tries many orders.
inline void maybe_yield(Fiber& fiber) {
    if (fiber.cluster->choices.yields()) yield(fiber);
}

// Called before a thread accesses global memory through which clusters may signal one another.
// Lets other clusters run first, now and then.
void pause(Fiber& fiber, bool writes);

// Called when a copy was issued: it may land before the thread goes on.
inline void let_land(Fiber& fiber) {
    if (fiber.cluster->choices.yields_to_copy()) yield(fiber);
}

// True if no other thread can run and no copy can land.
inline bool is_alone(const Cluster& cluster) {
    return cluster.ready.empty() && cluster.flights.empty();
}

// Called at an event that cannot recur for ever while all threads poll.
void note_progress(Cluster& cluster);

// Called at any event other than a poll.
void note_event(Cluster& cluster);

// Called when a thread changed memory that others may poll.
void note_change(Cluster& cluster);

void wake(Fiber* fiber);

void wake_all(std::vector<Fiber*>& fibers);

}  // namespace tmaasync_emulate
