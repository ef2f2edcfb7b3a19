#include "wgmma/whole_warpgroups.hpp"

#include "schedule/faults.hpp"
#include "state/names.hpp"

namespace tmaasync_emulate {

static const char* name_of(std::size_t instruction) {
    static constexpr const char* kNames[] = {
        "wgmma_fence()",
        "a wgmma",
        "wgmma_commit_group()",
        "wgmma_wait_group()",
    };
    return kNames[instruction];
}

// Reports an instruction of wgmma in a block whose last warps make up no whole warpgroup.
static bool reports_partial_warpgroup(Cluster& cluster, const Fiber& first, uint32_t threads) {
    for (std::size_t i = 0; i < first.mmas.calls.size(); ++i) {
        if (!first.mmas.calls[i].count) continue;
        report_fault(
            first, {FaultKind::kPartialWarpgroup, name_of(i), first.index / 32, threads},
            first.mmas.calls[i].site
        );
        return true;
    }
    return false;
}

bool reports_lone_mma(Cluster& cluster, const Cta& cta) {
    const uint32_t threads = cluster.launch.threads();
    const Fiber* fibers = &cluster.fibers[std::size_t{cta.rank} * threads];
    const uint32_t whole = threads / kGroupThreads * kGroupThreads;
    if (whole != threads && reports_partial_warpgroup(cluster, fibers[whole], threads)) return true;
    for (uint32_t thread = 0; thread < threads; ++thread) {
        const Fiber& one = fibers[thread / kGroupThreads * kGroupThreads];
        const Fiber& other = fibers[thread];
        for (std::size_t i = 0; i < one.mmas.calls.size(); ++i) {
            if (one.mmas.calls[i].count == other.mmas.calls[i].count) continue;
            const bool is_other = one.mmas.calls[i].count < other.mmas.calls[i].count;
            const Fiber& more = is_other ? other : one;
            const Fiber& less = is_other ? one : other;
            report_fault(
                more,
                {FaultKind::kMmaCallsDiffer, name_of(i), more.mmas.calls[i].count, more.index,
                 more.index / 32, less.mmas.calls[i].count, less.index, less.index / 32},
                more.mmas.calls[i].site
            );
            return true;
        }
    }
    return false;
}

void check_mma_calls(Fiber& fiber) {
    if (reports_lone_mma(*fiber.cluster, *fiber.cta)) fail(fiber, {});
}

}  // namespace tmaasync_emulate
