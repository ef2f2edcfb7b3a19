#include "launch/deadlock.hpp"

#include "barriers/mbarrier.hpp"
#include "tensor_memory/allocation.hpp"
#include "warps/lanes.hpp"
#include "wgmma/setmaxnreg.hpp"
#include "wgmma/whole_warpgroups.hpp"

namespace tmaasync_emulate {

// True if a thread waits for its warpgroup while others of it have ended, or wait at a barrier
// without ever having executed a wgmma. A thread that waits on an mbarrier may still execute one.
static bool has_lone_waiter(Cluster& cluster, const Cta& cta) {
    const uint32_t threads = cluster.launch.threads();
    const Fiber* fibers = &cluster.fibers[std::size_t{cta.rank} * threads];
    return std::any_of(fibers, fibers + threads, [&](const Fiber& fiber) {
        const bool has_met =
            fiber.wait.kind == Wait::Kind::kNamedBarrier || fiber.wait.kind == Wait::Kind::kCluster;
        const bool is_away = fiber.is_done || (has_met && fiber.mmas.issued == 0);
        return is_away && !fiber.warpgroup->waiters.empty();
    });
}

// The reason why a thread's wait can never end; none if the wait itself is sound.
static Reason vain_wait_of(const Fiber& fiber) {
    Reason reason;
    if (fiber.wait.kind == Wait::Kind::kRegisters) return shortage_of(fiber);
    if (fiber.wait.kind == Wait::Kind::kTensorMemory) return reason_of_waiting(fiber);
    if (fiber.wait.kind != Wait::Kind::kMbarrier) return reason;
    find_barrier(fiber.cluster->ctas[fiber.wait.cta->rank], fiber.wait.number, reason);
    return reason;
}

void report_deadlock(Cluster& cluster) {
    for (const Cta& cta : cluster.ctas) {
        if (reports_lone_change(cluster, cta)) return;
        if (has_lone_waiter(cluster, cta) && reports_lone_mma(cluster, cta)) return;
    }
    for (Fiber& fiber : cluster.fibers) {
        if (reports_lone_lanes(cluster, fiber)) return;
    }
    for (const Fiber& fiber : cluster.fibers) {
        Reason reason = fiber.is_done ? Reason() : vain_wait_of(fiber);
        if (reason) return report_fault(fiber, reason);
    }
    cluster.failure.kind = Failure::Kind::kDeadlock;
}

}  // namespace tmaasync_emulate
