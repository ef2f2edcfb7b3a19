#include "schedule/faults.hpp"

namespace tmaasync_emulate {

void report_fault(const Fiber& fiber, const Reason& reason, uintptr_t site) {
    Cluster& cluster = *fiber.cluster;
    if (!cluster.has_failed()) cluster.failure = {Failure::Kind::kFault, reason, &fiber, site};
}

void report_fault(const Fiber& fiber, const Reason& reason) {
    report_fault(fiber, reason, fiber.site);
}

void fail(Fiber& fiber, const Reason& reason) {
    report_fault(fiber, reason);
    leave(fiber);
    __builtin_unreachable();
}

bool is_pardoned(const Fiber& fiber, FaultKind kind, uintptr_t site) {
    return fiber.cluster->launch.rules.pardons(rule_of(kind), site);
}

void break_rule(Fiber& fiber, const Reason& reason) {
    if (!is_pardoned(fiber, reason.kind(), fiber.site)) fail(fiber, reason);
}

void note_race(Cluster& cluster) {
    const bool has_race = cluster.detector && cluster.detector->has_race();
    if (has_race && !cluster.has_failed()) cluster.failure.kind = Failure::Kind::kRace;
}

void check_repeat(Fiber& fiber) {
    Repeat repeat = *fiber.races.repeat;
    fiber.races.repeat.reset();
    const bool is_same = std::memcmp(repeat.at, repeat.held.data(), repeat.bytes) == 0;
    if (is_same && repeat.race.rule == Rule::kNone) return;
    if (!is_same) repeat.race.rule = Rule::kNone;
    fiber.cluster->detector->report(repeat.race);
    stop_if_race(fiber);
}

}  // namespace tmaasync_emulate
