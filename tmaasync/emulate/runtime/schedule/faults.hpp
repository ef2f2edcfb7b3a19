// Faults and races, which end the launch.
#pragma once

#include <cstdint>

#include "schedule/scheduler.hpp"

namespace tmaasync_emulate {

// Reports a fault of an operation that the thread issued at `site`. Only the first fault counts.
void report_fault(const Fiber& fiber, const Reason& reason, uintptr_t site);

// Reports a fault at the thread's present site.
void report_fault(const Fiber& fiber, const Reason& reason);

[[noreturn]] void fail(Fiber& fiber, const Reason& reason);

void note_race(Cluster& cluster);

// Ends the launch if the last access was part of a race.
inline void stop_if_race(Fiber& fiber) {
    if (!fiber.cluster->detector->has_race()) return;
    note_race(*fiber.cluster);
    leave(fiber);
    __builtin_unreachable();
}

// Called after a store that repeats another lane's. It is a race only if it changed the bytes.
void check_repeat(Fiber& fiber);

}  // namespace tmaasync_emulate
