#include "wgmma/setmaxnreg.hpp"

#include "schedule/faults.hpp"

namespace tmaasync_emulate {

static Reason instruction_of(const RegisterChange& change) {
    return {change.claims ? FaultKind::kClaim : FaultKind::kRelease, change.registers};
}

static uint32_t group_of(const Cta& cta, const Warpgroup& group) {
    return static_cast<uint32_t>(&group - cta.warpgroups.data());
}

static uint32_t warps_in(const Cta& cta, const Warpgroup& group) {
    const auto warps = static_cast<uint32_t>(cta.warps.size());
    return (1u << std::min(kGroupWarps, warps - group_of(cta, group) * kGroupWarps)) - 1;
}

static Mention all_warps_of(const Cta& cta, const Warpgroup& group) {
    return warps_of(warps_in(cta, group) << group_of(cta, group) * kGroupWarps);
}

// Registers that all threads of the warpgroup hold.
static uint32_t held_by(const Cta& cta, const Warpgroup& group) {
    return static_cast<uint32_t>(__builtin_popcount(warps_in(cta, group))) * 32 * group.registers;
}

static uint32_t launched_with(const Fiber& fiber) {
    const auto warps = static_cast<uint32_t>(fiber.cta->warps.size());
    return warps * 32 * fiber.cluster->launch.registers;
}

static uint32_t free_registers(const Fiber& fiber) {
    uint32_t held = 0;
    for (const Warpgroup& group : fiber.cta->warpgroups) held += held_by(*fiber.cta, group);
    return launched_with(fiber) - held;
}

// The most registers per thread that the claiming warpgroups can have if the others keep theirs.
static uint32_t most_to_claim(const Cta& cta, uint32_t all) {
    uint32_t threads = 0;
    for (const Warpgroup& group : cta.warpgroups) {
        const auto warps = static_cast<uint32_t>(__builtin_popcount(warps_in(cta, group)));
        const bool claims = group.changes.size() && group.changes.back().claims;
        claims ? threads += warps* 32 : all -= held_by(cta, group);
    }
    return all / threads / 8 * 8;
}

static Reason remedy_of(const Fiber& fiber, const Cta& cta, const Warpgroup& claimer) {
    uint64_t silent = 0;
    for (const Warpgroup& group : cta.warpgroups) {
        if (&group != &claimer && !group.changes.size()) silent |= all_warps_of(cta, group).value;
    }
    if (silent) return {FaultKind::kNothingReleased, warps_of(static_cast<uint32_t>(silent))};
    return {FaultKind::kClaimLess, most_to_claim(cta, launched_with(fiber))};
}

Reason shortage_of(const Fiber& fiber) {
    const Cta& cta = *fiber.cta;
    const Warpgroup& group = *fiber.warpgroup;
    const RegisterChange& change = group.changes.back();
    Reason reason(
        FaultKind::kRegisterShortage, all_warps_of(cta, group), instruction_of(change),
        list_of(cta.warpgroups.size() + 1),
        Reason(FaultKind::kLaunchedWith, launched_with(fiber), fiber.cluster->launch.registers)
    );
    for (const Warpgroup& other : cta.warpgroups) {
        if (&other == &group) continue;
        reason.add(Reason(FaultKind::kHold, all_warps_of(cta, other), held_by(cta, other)));
    }
    const uint32_t more = (change.registers - group.registers) * 128;
    reason.add(Reason(FaultKind::kAreFree, more, free_registers(fiber)));
    reason.add(remedy_of(fiber, cta, group));
    return reason;
}

static void check_direction(Fiber& fiber, const RegisterChange& change) {
    const Warpgroup& group = *fiber.warpgroup;
    // Before the first change, the compiler may have given the threads fewer registers.
    const bool is_known = group.changes.size() > 1 || !change.claims;
    if (!is_known || change.claims == (change.registers > group.registers)) return;
    if (change.registers == group.registers) return;
    fail(
        fiber, {FaultKind::kRegisterDirection, instruction_of(change),
                all_warps_of(*fiber.cta, group), group.registers}
    );
}

// The first thread of a warpgroup begins the change. The others must ask for the same.
static RegisterChange& change_for(Fiber& fiber, bool claims, uint32_t registers) {
    auto& changes = fiber.warpgroup->changes;
    const std::size_t index = fiber.register_changes++;
    if (index == changes.size()) {
        changes.push_back({claims, registers, 0, false, &fiber, fiber.site});
        if (fiber.cluster->launch.registers) check_direction(fiber, changes.back());
    }
    RegisterChange& change = changes[index];
    if (change.claims != claims || change.registers != registers) {
        const RegisterChange mine{claims, registers};
        fail(
            fiber, {FaultKind::kRegistersDiffer, instruction_of(change), change.first->index / 32,
                    instruction_of(mine), fiber.index / 32}
        );
    }
    change.warps |= 1u << fiber.index / 32 % kGroupWarps;
    return change;
}

void set_registers(Fiber& fiber, bool claims, uint32_t registers) {
    RegisterChange& change = change_for(fiber, claims, registers);
    Warpgroup& group = *fiber.warpgroup;
    Cluster& cluster = *fiber.cluster;
    if (change.is_done || cluster.launch.registers == 0) return;
    const std::size_t index = fiber.register_changes - 1;
    while (!group.changes[index].is_done) {
        const uint32_t more = registers > group.registers ? registers - group.registers : 0;
        const auto warps = static_cast<uint32_t>(__builtin_popcount(warps_in(*fiber.cta, group)));
        if (warps * 32 * more > free_registers(fiber)) {
            fiber.cta->register_waiters.push_back(&fiber);
            block(fiber, {Wait::Kind::kRegisters, "setmaxnreg.inc"});
            continue;
        }
        group.registers = registers;
        group.changes[index].is_done = true;
        note_progress(cluster);
        wake_all(fiber.cta->register_waiters);
    }
}

bool reports_lone_change(Cluster& cluster, const Cta& cta) {
    for (const Warpgroup& group : cta.warpgroups) {
        const uint32_t all = warps_in(cta, group);
        for (const RegisterChange& change : group.changes) {
            if (change.warps == all) continue;
            const uint32_t first = group_of(cta, group) * kGroupWarps;
            report_fault(
                *change.first,
                {FaultKind::kRegistersOfPart, instruction_of(change),
                 warps_of(change.warps << first), warps_of((all & ~change.warps) << first)},
                change.site
            );
            return true;
        }
    }
    return false;
}

void check_register_changes(Fiber& fiber) {
    if (reports_lone_change(*fiber.cluster, *fiber.cta)) fail(fiber, {});
}

}  // namespace tmaasync_emulate
