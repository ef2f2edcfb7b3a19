#include "wgmma/setmaxnreg.hpp"

#include "schedule/faults.hpp"

namespace tmaasync_emulate {

static Words instruction_of(const RegisterChange& change) {
    const Words count = decimal(change.registers);
    return change.claims ? "claim_registers<" + count + "> (setmaxnreg.inc)"
                         : "release_registers<" + count + "> (setmaxnreg.dec)";
}

// Names the warps of a set by their numbers in the CTA: "warp 4", or "warps 4, 5, 6".
static Words warps_of(uint32_t first, uint32_t warps) {
    Words words;
    for (uint32_t warp = 0; warp < kGroupWarps; ++warp) {
        if (!(warps >> warp & 1)) continue;
        words << (words.is_empty() ? "" : ", ") + decimal(first + warp);
    }
    return ((warps & (warps - 1)) ? "warps " : "warp ") + words;
}

static uint32_t group_of(const Cta& cta, const Warpgroup& group) {
    return static_cast<uint32_t>(&group - cta.warpgroups.data());
}

static uint32_t warps_in(const Cta& cta, const Warpgroup& group) {
    const auto warps = static_cast<uint32_t>(cta.warps.size());
    return (1u << std::min(kGroupWarps, warps - group_of(cta, group) * kGroupWarps)) - 1;
}

static Words all_warps_of(const Cta& cta, const Warpgroup& group) {
    return warps_of(group_of(cta, group) * kGroupWarps, warps_in(cta, group));
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

static Words remedy_of(const Fiber& fiber, const Cta& cta, const Warpgroup& claimer) {
    Words silent;
    for (const Warpgroup& group : cta.warpgroups) {
        if (&group == &claimer || group.changes.size()) continue;
        silent << (silent.is_empty() ? "" : "; ") + all_warps_of(cta, group);
    }
    if (!silent.is_empty()) {
        return "Nothing was released by " + silent +
               ": let all warps of every producer warpgroup call release_registers<N>() before "
               "they load, with the N of tmaasync.RegisterSplit";
    }
    const uint32_t most = most_to_claim(cta, launched_with(fiber));
    return "Claim at most " + decimal(most) +
           ", or let the producers keep less: tmaasync.RegisterSplit computes both";
}

Words shortage_of(const Fiber& fiber) {
    const Cta& cta = *fiber.cta;
    const Warpgroup& group = *fiber.warpgroup;
    const uint32_t each = fiber.cluster->launch.registers;
    const RegisterChange& change = group.changes.back();
    Words words = all_warps_of(cta, group) + " wait for ever in " + instruction_of(change) +
                  ": the CTA was launched with " + decimal(launched_with(fiber)) + " registers (" +
                  decimal(each) + " a thread by __launch_bounds__), ";
    for (const Warpgroup& other : cta.warpgroups) {
        if (&other == &group) continue;
        words << all_warps_of(cta, other) + " hold " + decimal(held_by(cta, other)) + ", ";
    }
    const uint32_t more = (change.registers - group.registers) * 128;
    return words + "and of the " + decimal(more) + " more that this takes " +
           decimal(free_registers(fiber)) + " are free. " + remedy_of(fiber, cta, group);
}

static void check_direction(Fiber& fiber, const RegisterChange& change) {
    const Warpgroup& group = *fiber.warpgroup;
    // Before the first change, the compiler may have given the threads fewer registers.
    const bool is_known = group.changes.size() > 1 || !change.claims;
    if (!is_known || change.claims == (change.registers > group.registers)) return;
    if (change.registers == group.registers) return;
    fail(
        fiber, instruction_of(change) + " by " + all_warps_of(*fiber.cta, group) +
                   ", whose threads have " + decimal(group.registers) +
                   " registers: a claim only raises that and a release only lowers it. Take the "
                   "numbers of tmaasync.RegisterSplit"
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
            fiber, "the warps of one warpgroup change their registers differently: " +
                       instruction_of(change) + " by warp " + decimal(change.first->index / 32) +
                       ", " + instruction_of(mine) + " by warp " + decimal(fiber.index / 32) +
                       ". All four warps execute the same"
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
                instruction_of(change) + " was executed by " + warps_of(first, change.warps) +
                    " of the warpgroup and not by " + warps_of(first, all & ~change.warps) +
                    ". setmaxnreg is the whole warpgroup's: call it before its warps part",
                change.site
            );
            return true;
        }
    }
    return false;
}

void check_register_changes(Fiber& fiber) {
    if (reports_lone_change(*fiber.cluster, *fiber.cta)) fail(fiber, "");
}

}  // namespace tmaasync_emulate
