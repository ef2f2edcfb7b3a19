#include "launch/thread_end.hpp"

#include "barriers/cluster_barrier.hpp"
#include "barriers/mbarrier.hpp"
#include "barriers/named.hpp"
#include "copies/stores.hpp"
#include "copies/thread_copies.hpp"
#include "memory/unwritten.hpp"
#include "schedule/events.hpp"
#include "state/names.hpp"
#include "tensor_memory/allocation.hpp"
#include "warps/lanes.hpp"
#include "wgmma/setmaxnreg.hpp"
#include "wgmma/wgmma.hpp"
#include "wgmma/whole_warpgroups.hpp"

namespace tmaasync_emulate {

// Ends the launch at a thread's end, unless it relaxes the rule. The fault is reported at the line
// that issued the operation.
static void break_rule_at(Fiber& fiber, const Issuer& issuer, const Reason& reason) {
    const Issuer place = issuer.fiber ? issuer : Issuer{&fiber, fiber.site};
    if (is_pardoned(fiber, reason.kind(), place.site)) return;
    report_fault(*place.fiber, reason, place.site);
    fail(fiber, {});
}

static const std::vector<Landing>& last_landings(const Mbarrier& barrier) {
    return barrier.history.landings.empty() ? barrier.history.landed_last
                                            : barrier.history.landings;
}

static Issuer last_landing(const Mbarrier& barrier) {
    const auto& landings = last_landings(barrier);
    return landings.empty() ? Issuer{} : Issuer{landings.back().issuer, landings.back().site};
}

static void check_nothing_lands(Fiber& fiber) {
    for (const Flight& flight : fiber.cluster->flights) {
        if (flight.source == fiber.cta) {
            break_rule_at(
                fiber, {flight.issuer, flight.site},
                {FaultKind::kEndsInPush, shared_at(flight.source_offset)}
            );
        }
        if (flight.target != fiber.cta && flight.credited != fiber.cta) continue;
        if (flight.kind == Flight::Kind::kTensor) {
            break_rule_at(fiber, {flight.issuer, flight.site}, FaultKind::kTcgen05InFlight);
            continue;
        }
        if (flight.kind == Flight::Kind::kArrival) {
            break_rule_at(
                fiber, {flight.issuer, flight.site},
                {FaultKind::kEndsInThreadCopies, barrier_at(flight.barrier)}
            );
            continue;
        }
        if (const Reason early = ended_early(*fiber.cluster, flight)) {
            break_rule_at(
                fiber, {flight.issuer, flight.site},
                {FaultKind::kEndsAfterEarlyPhase, name_of(operation_of(flight)),
                 shared_at(flight.shared), of_cta(*flight.issuer, *flight.target), early}
            );
        }
        break_rule_at(
            fiber, {flight.issuer, flight.site},
            {FaultKind::kEndsInFlight, name_of(operation_of(flight)), shared_at(flight.shared),
             of_cta(*flight.issuer, *flight.target), barrier_at(flight.barrier),
             wrong_wait(fiber, *flight.credited, flight.barrier)}
        );
    }
}

// True for a barrier whose loads are in flight still, which the launch tolerates.
static bool is_credited_by_flight(const Cluster& cluster, const Cta& cta, const Mbarrier& barrier) {
    return std::any_of(cluster.flights.begin(), cluster.flights.end(), [&](const Flight& flight) {
        return flight.credited == &cta && flight.barrier == barrier.offset;
    });
}

static void check_no_bytes_missing(Fiber& fiber) {
    for (const Mbarrier& barrier : fiber.cta->barriers) {
        if (!barrier.is_valid || barrier.bytes == 0) continue;
        if (is_credited_by_flight(*fiber.cluster, *fiber.cta, barrier)) continue;
        const bool is_short = barrier.bytes > 0;
        const Reason bytes(
            is_short ? FaultKind::kStillExpects : FaultKind::kHasMore, std::abs(barrier.bytes)
        );
        break_rule_at(
            fiber, is_short ? barrier.history.expected_last : last_landing(barrier),
            {FaultKind::kEndsWithBytes, barrier_at(barrier.offset), bytes}
        );
    }
}

// A load that no thread waited for may not have landed yet, so no thread may read it.
static void check_loads_were_awaited(Fiber& fiber) {
    for (const Mbarrier& barrier : fiber.cta->barriers) {
        if (!barrier.is_valid || barrier.landed <= barrier.observed) continue;
        const auto& landings = last_landings(barrier);
        Reason target;
        if (!landings.empty()) target = {FaultKind::kTo, shared_at(landings.back().shared)};
        break_rule_at(
            fiber, last_landing(barrier),
            {FaultKind::kUnawaitedLoad, barrier.landed - 1, barrier_at(barrier.offset), target}
        );
    }
}

// True if the peer's access happens before the next access of some thread of the CTA.
template <typename Knows>
bool is_seen_by_cta(const Fiber& fiber, const Access& remote, const Knows& knows) {
    const uint32_t threads = fiber.cluster->launch.threads();
    const uint32_t first = fiber.cta->rank * threads;
    for (uint32_t thread = first; thread < first + threads; ++thread) {
        if (knows(thread, remote.agent, remote.epoch)) return true;
    }
    return false;
}

// Peer accesses to this CTA's memory that may still run when the CTA exits.
static std::vector<Access> unfinished_accesses(const Fiber& fiber) {
    const Detector& detector = *fiber.cluster->detector;
    std::vector<Access> found;
    for (const Access& remote : fiber.cta->races.remote) {
        const auto knows = [&](auto... what) { return detector.knows(what...); };
        if (!is_seen_by_cta(fiber, remote, knows)) found.push_back(remote);
    }
    // A relaxed arrival orders no access, but is itself over once a thread has waited for its
    // phase.
    for (const Access& remote : fiber.cta->races.remote_arrivals) {
        const auto knows = [&](auto... what) { return detector.knows_arrival(what...); };
        if (!is_seen_by_cta(fiber, remote, knows)) found.push_back(remote);
    }
    return found;
}

// Called by the CTA's last thread: all peer accesses to the CTA's memory must have happened before.
static void check_peers_are_done(Fiber& fiber) {
    const uint32_t threads = fiber.cluster->launch.threads();
    for (const Access& remote : unfinished_accesses(fiber)) {
        const Reason peer = remote.operation == Operation::kTmaPush
                                ? Reason(FaultKind::kPeerCopied)
                                : Reason(FaultKind::kPeerReached, remote.thread / threads);
        const Fiber& who = fiber.cluster->fibers[remote.thread];
        break_rule_at(
            fiber, {&who, remote.site}, {FaultKind::kEndsBeforePeer, fiber.cta->rank, peer}
        );
    }
}

static void forget_thread(Fiber& fiber) {
    Cluster& cluster = *fiber.cluster;
    note_progress(cluster);
    fiber.is_done = true;
    --cluster.live;
    --fiber.cta->live;
    fiber.warp->live_lanes &= ~(1u << fiber.lane);
    if (fiber.has_arrived_at_cluster) --cluster.barrier.arrived;
    complete_cluster_barrier(cluster);
}

// Checks that nothing of the CTA is left, at the end of its last thread.
static void check_cta_is_done(Fiber& fiber) {
    check_register_changes(fiber);
    check_mma_calls(fiber);
    check_columns_are_free(fiber);
    check_nothing_lands(fiber);
    check_no_bytes_missing(fiber);
    check_loads_were_awaited(fiber);
    if (fiber.cluster->detector) check_peers_are_done(fiber);
}

static void end(Fiber& fiber) {
    if (fiber.races.repeat) check_repeat(fiber);
    if (Detector* detector = fiber.cluster->detector.get()) {
        detector->end_thread(fiber.number);
        stop_if_race(fiber);
    }
    finish_stores(fiber);
    check_thread_copies_are_awaited(fiber);
    check_mmas_are_done(fiber);
    if (fiber.cta->live == 1) check_cta_is_done(fiber);
    record(fiber, {.kind = EventKind::kThreadEnd});
    forget_thread(fiber);
    // Waits for all live threads now need one thread less.
    for (Meeting& meeting : fiber.warp->meetings) {
        hold_if_complete(*fiber.cluster, *fiber.warp, meeting, nullptr);
    }
    for (uint32_t number = 0; number < fiber.cta->named.size(); ++number) {
        const NamedBarrier& barrier = fiber.cta->named[number];
        if (barrier.arrived && barrier.threads == 0) {
            release_if_complete(*fiber.cluster, *fiber.cta, number);
        }
    }
}

void exit_thread(Fiber& fiber) {
    end(fiber);
    leave(fiber);
    __builtin_unreachable();
}

}  // namespace tmaasync_emulate
