#include "barriers/init_order.hpp"

#include "memory/accesses.hpp"
#include "schedule/faults.hpp"

namespace tmaasync_emulate {

static void report_init(Fiber& fiber, const Cta& home, const Mbarrier& barrier, Operation use) {
    Detector& detector = *fiber.cluster->detector;
    detector.report({
        access_in(
            *fiber.cluster, barrier.races.initialiser, barrier.races.initialised, barrier.init_site,
            Operation::kBarrierInit
        ),
        access_in(*fiber.cluster, fiber.number, detector.epoch_of(fiber.number), fiber.site, use),
        {Space::kShared, home.rank, barrier.offset},
        use == Operation::kTmaLoad,
    });
    stop_if_race(fiber);
}

void check_init_is_seen(Fiber& fiber, const Cta& home, const Mbarrier& barrier, Operation use) {
    const Detector& detector = *fiber.cluster->detector;
    if (detector.knows(fiber.number, barrier.races.initialiser, barrier.races.initialised)) return;
    const bool is_fenced = barrier.races.is_init_fenced;
    if (is_fenced &&
        detector.knows_arrival(fiber.number, barrier.races.initialiser, barrier.races.fenced)) {
        return;
    }
    report_init(fiber, home, barrier, use);
}

void check_init_is_fenced(Fiber& fiber, const Cta& home, const Mbarrier& barrier) {
    check_init_is_seen(fiber, home, barrier);
    const Detector& detector = *fiber.cluster->detector;
    if (barrier.races.is_init_fenced) return;
    if (detector.is_published(fiber.number, barrier.races.initialiser, barrier.races.initialised))
        return;
    report_init(fiber, home, barrier, Operation::kTmaLoad);
}

void fence_inits(Fiber& fiber) {
    for (Cta& cta : fiber.cluster->ctas) {
        for (Mbarrier& barrier : cta.barriers) {
            if (barrier.races.initialiser != fiber.number || barrier.races.is_init_fenced) continue;
            barrier.races.is_init_fenced = true;
            barrier.races.fenced = fiber.cluster->detector->epoch_of(fiber.number);
        }
    }
}

}  // namespace tmaasync_emulate
