#include "memory/registers.hpp"

#include "memory/accesses.hpp"
#include "schedule/faults.hpp"

namespace tmaasync_emulate {

static void report_registers(
    Fiber& fiber, uintptr_t before, Operation first, Operation second, bool is_a
) {
    const uint32_t kind = is_a ? 1 : 0;
    fiber.cluster->detector->report({
        access_in(*fiber.cluster, fiber.number, 0, before, first),
        access_in(*fiber.cluster, fiber.number, 0, fiber.site, second),
        {Space::kRegisters, fiber.cta->rank, kind},
    });
    stop_if_race(fiber);
}

void touch_registers(Fiber& fiber, uintptr_t address, uint64_t bytes, bool writes) {
    for (Accumulators& held : fiber.races.accumulators) {
        if (address >= held.end || address + bytes <= held.start) continue;
        if (held.is_a && !writes) continue;
        const Agent agent = fiber.warpgroup->races.agent;
        const bool is_done = fiber.cluster->detector->knows(fiber.number, agent, held.epoch);
        if (!is_done) {
            return report_registers(
                fiber, held.site, Operation::kWgmma, Operation::kRegisters, held.is_a
            );
        }
        held.is_touched = true;
        held.touched_at = fiber.site;
    }
}

uint32_t bytes_of_accumulators(const Mma& mma) {
    return mma.columns / 2 * (mma.sum == MmaSum::kHalf ? 2 : 4);
}

// Called before a wgmma: a wgmma.fence must follow the thread's own accesses to the registers.
static void check_registers(Fiber& fiber, uintptr_t start, uintptr_t end, bool is_a) {
    Accumulators* mine = nullptr;
    for (Accumulators& held : fiber.races.accumulators) {
        if (start >= held.end || end <= held.start) continue;
        if (held.is_touched) {
            return report_registers(
                fiber, held.touched_at, Operation::kRegisters, Operation::kWgmma, is_a
            );
        }
        if (held.start == start && held.end == end && held.is_a == is_a) mine = &held;
    }
    if (!mine) {
        // Another wgmma may use the registers of a finished one.
        std::erase_if(fiber.races.accumulators, [&](const Accumulators& held) {
            return start < held.end && end > held.start;
        });
        fiber.races.accumulators.push_back({start, end, is_a});
        mine = &fiber.races.accumulators.back();
    }
    mine->epoch = fiber.mmas.commits + 1;
    mine->site = fiber.site;
}

void check_mma_fence(Fiber& fiber, const Mma& mma) {
    if (!fiber.mmas.has_fence) {
        return report_registers(fiber, fiber.site, Operation::kRegisters, Operation::kWgmma, false);
    }
    const auto start = reinterpret_cast<uintptr_t>(mma.accumulators);
    check_registers(fiber, start, start + bytes_of_accumulators(mma), false);
    if (!mma.a_in_registers) return;
    const auto a = reinterpret_cast<uintptr_t>(mma.a_held);
    check_registers(fiber, a, a + sizeof(mma.a_registers), true);
}

void fence_registers(Fiber& fiber) {
    for (Accumulators& held : fiber.races.accumulators) held.is_touched = false;
}

}  // namespace tmaasync_emulate
