#include "memory/grids.hpp"

#include "schedule/faults.hpp"

namespace tmaasync_emulate {

void note_grid_wait(Fiber& fiber) {
    if (!fiber.cluster->launch.memory.fresh) return;
    Detector* detector = fiber.cluster->detector.get();
    fiber.cta->grid_waits.push_back(
        {fiber.number, detector ? detector->epoch_of(fiber.number) : 0}
    );
}

// True if the thread is ordered after a griddepcontrol.wait; without a detector, after any.
static bool has_awaited_grids(Fiber& fiber) {
    const Detector* detector = fiber.cluster->detector.get();
    for (const Cta& cta : fiber.cluster->ctas) {
        for (const GridWait& wait : cta.grid_waits) {
            if (!detector || detector->knows(fiber.number, wait.thread, wait.epoch)) return true;
        }
    }
    return false;
}

void check_grids_awaited(Fiber& fiber, uintptr_t address) {
    if (!fiber.cluster->launch.memory.is_fresh(address) || has_awaited_grids(fiber)) return;
    const Mention before{address, MentionKind::kWrittenBefore};
    break_rule(fiber, {FaultKind::kAheadOfPreviousGrids, hexadecimal(address), before});
}

}  // namespace tmaasync_emulate
