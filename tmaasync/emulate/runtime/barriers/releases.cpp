#include "barriers/releases.hpp"

#include <algorithm>
#include <vector>

#include "barriers/mbarrier.hpp"
#include "memory/unwritten.hpp"
#include "state/names.hpp"

namespace tmaasync_emulate {

uint32_t rank_of(const Cluster& cluster, uint32_t warp) {
    return warp / static_cast<uint32_t>(cluster.ctas[0].warps.size());
}

Reason in_cluster(const Cluster& cluster, const Cta& cta) {
    return cluster.ctas.size() > 1 ? Reason(FaultKind::kOfCta, cta.rank) : Reason();
}

void add_warps(Reason& reason, const Fiber& issuer, const Arrived& arrived) {
    const Cluster& cluster = *issuer.cluster;
    std::vector<uint64_t> masks(cluster.ctas.size());
    for (const uint32_t warp : arrived.warps.warps()) {
        masks[rank_of(cluster, warp)] |= 1ull << warp % cluster.ctas[0].warps.size();
    }
    const auto without = std::count(masks.begin(), masks.end(), uint64_t{0});
    reason.add(list_of(masks.size() - static_cast<std::size_t>(without)));
    for (const Cta& cta : cluster.ctas) {
        if (!masks[cta.rank]) continue;
        const Mention warps{masks[cta.rank], MentionKind::kWarps};
        reason.add(Reason(FaultKind::kWarpsOfCta, warps, in_cluster(cluster, cta)));
    }
}

Reason too_few_counted(const Fiber& issuer, const EndedWait& wait) {
    const Mbarrier& barrier = *barrier_of(*wait.cta, wait.barrier);
    return {
        FaultKind::kTooFewCounted, barrier_at(wait.barrier), in_cluster(*issuer.cluster, *wait.cta),
        barrier.count, barrier.history.arriving_threads
    };
}

Reason released_unfilled(
    const Fiber& fiber, const Cta& owner, const Mbarrier& barrier, uint32_t count
) {
    const EndedWait* const wait = last_wait(fiber, UINT32_MAX, false);
    const bool is_of_stage = wait && wait->cta == &owner && wait->phase != EndedWait::kNoPhase;
    if (!is_of_stage || wait->phase < barrier.phase) return {};
    if (barrier.history.passed_at_first.fiber) return {};  // a wait named the wrong parity
    if (barrier.pending || barrier.bytes <= 0) return {};
    const Mbarrier& released = *barrier_of(owner, wait->barrier);
    const Arrived& arrived = released.history.arrived_before;
    if (released.phase != wait->phase + 1 || arrived.threads.empty()) return {};
    const bool counts_too_few = released.history.arriving_threads > released.count;
    Reason cause;
    if (counts_too_few) {
        cause = too_few_counted(fiber, *wait);
    } else {
        cause = {
            FaultKind::kReleasedUnfilled, barrier_at(wait->barrier),
            in_cluster(*fiber.cluster, owner), wait->phase
        };
        add_warps(cause, fiber, arrived);
        cause.add(barrier_at(barrier.offset));
    }
    return {
        FaultKind::kFilledAgain,
        barrier_at(barrier.offset),
        number_of_arrivals(count),
        barrier.phase,
        barrier.count,
        barrier.bytes,
        cause
    };
}

}  // namespace tmaasync_emulate
