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

// True if the launch relaxes the rule that a fault of this kind at `site` breaks. It is noted then.
bool is_pardoned(const Fiber& fiber, FaultKind kind, uintptr_t site);

// Fails at the thread's present site, unless the launch relaxes the rule.
void break_rule(Fiber& fiber, const Reason& reason);

void note_race(Cluster& cluster);

// Ends the launch if the last access was part of a race.
inline void stop_if_race(Fiber& fiber) {
    if (!fiber.cluster->detector->has_race()) return;
    note_race(*fiber.cluster);
    leave(fiber);
    __builtin_unreachable();
}

// Called after a store to bytes that an unordered store wrote. If it has changed nothing, it breaks
// another rule, or none if both are of one instruction.
void check_repeat(Fiber& fiber);

}  // namespace tmaasync_emulate
