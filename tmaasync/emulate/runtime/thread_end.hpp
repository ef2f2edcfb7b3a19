// The end of threads and CTAs, and of a cluster in which no thread can proceed.
#pragma once

#include <algorithm>
#include <cstdlib>
#include "copies.hpp"
#include "mma.hpp"
#include "register_budget.hpp"
#include "warp.hpp"

namespace tmaasync_emulate {

// Ends the launch at a thread's end. The fault is reported at the line that issued the operation.
[[noreturn]] inline void fail_at(Fiber& fiber, const Deed& deed, const Words& reason) {
    const Deed place = deed.fiber ? deed : Deed{&fiber, fiber.site};
    fiber.cluster->report_fault(*place.fiber, reason, place.site);
    fiber.cluster->fail(fiber, "");
}

inline const std::vector<Landing>& last_landings(const Mbarrier& barrier) {
    return barrier.landings.empty() ? barrier.landed_last : barrier.landings;
}

inline Deed last_landing(const Mbarrier& barrier) {
    const auto& landings = last_landings(barrier);
    return landings.empty() ? Deed{} : Deed{landings.back().issuer, landings.back().site};
}

inline void check_nothing_lands(Fiber& fiber) {
    for (const Flight& flight : fiber.cluster->flights()) {
        if (flight.source == fiber.cta) {
            fail_at(
                fiber, {flight.issuer, flight.site},
                "the CTA ends while TMA still copies its " + shared_at(flight.source_offset) +
                    " to another CTA. Let the receiver signal that the bytes have landed: "
                    "cluster_sync() at the end, after its wait"
            );
        }
        if (flight.target != fiber.cta) continue;
        if (flight.kind == Flight::Kind::kArrival) {
            fail_at(
                fiber, {flight.issuer, flight.site},
                "the CTA ends while copies of cp.async are in flight that arrive on " +
                    barrier_at(flight.barrier) + ". Wait on it before the end"
            );
        }
        fail_at(
            fiber, {flight.issuer, flight.site},
            "the CTA ends while " + name_of(flight) + " to " + shared_at(flight.shared) +
                of_cta(*flight.issuer, *fiber.cta) + " is in flight. Wait on " +
                barrier_at(flight.barrier) + " before the end" +
                wrong_wait(fiber, *fiber.cta, flight.barrier)
        );
    }
}

inline void check_no_bytes_missing(Fiber& fiber) {
    for (const Mbarrier& barrier : fiber.cta->barriers) {
        if (!barrier.is_valid || barrier.bytes == 0) continue;
        const Words bytes = decimal(std::abs(barrier.bytes)) + " bytes";
        fail_at(
            fiber, barrier.bytes > 0 ? barrier.expected_last : last_landing(barrier),
            "the CTA ends while " + barrier_name(barrier) +
                (barrier.bytes > 0 ? " still expects " + bytes
                                   : " has " + bytes + " more than it expects") +
                ". Expect as many bytes per phase as its copies deliver"
        );
    }
}

// A load that no thread waited for may not have landed yet, so no thread may read it.
inline void check_loads_were_awaited(Fiber& fiber) {
    for (const Mbarrier& barrier : fiber.cta->barriers) {
        if (!barrier.is_valid || barrier.landed <= barrier.observed) continue;
        const auto& landings = last_landings(barrier);
        fail_at(
            fiber, last_landing(barrier),
            "the CTA ends, and no thread has waited for phase " + decimal(barrier.landed - 1) +
                " of " + barrier_name(barrier) + ", in which a TMA load" +
                (landings.empty() ? "" : " to " + shared_at(landings.back().shared)) +
                " landed. Wait for every load, or do not issue it"
        );
    }
}

// True if a thread waits for its warpgroup while others of it have ended, or wait at a barrier
// without ever having executed a wgmma. A thread that waits on an mbarrier may still execute one.
inline bool has_lone_waiter(Cluster& cluster, const Cta& cta) {
    const uint32_t threads = cluster.launch().threads();
    const Fiber* fibers = &cluster.fibers()[std::size_t{cta.rank} * threads];
    return std::any_of(fibers, fibers + threads, [&](const Fiber& fiber) {
        const bool has_met =
            fiber.wait.kind == Wait::Kind::kNamedBarrier || fiber.wait.kind == Wait::Kind::kCluster;
        const bool is_away = fiber.is_done || (has_met && fiber.mmas_issued == 0);
        return is_away && !fiber.warpgroup->waiters.empty();
    });
}

// The reason why a thread's wait can never end; empty if the wait itself is sound.
Words Cluster::vain_wait_of(const Fiber& fiber) {
    Words reason;
    if (fiber.wait.kind == Wait::Kind::kRegisters) return shortage_of(fiber);
    if (fiber.wait.kind != Wait::Kind::kMbarrier) return reason;
    find_barrier(ctas_[fiber.wait.cta->rank], fiber.wait.number, reason);
    return reason;
}

// Called when no thread can proceed.
void Cluster::give_up() {
    for (const Cta& cta : ctas_) {
        if (reports_lone_change(*this, cta)) return;
        if (has_lone_waiter(*this, cta) && reports_lone_mma(*this, cta)) return;
    }
    for (Fiber& fiber : fibers_) {
        if (reports_lone_lanes(*this, fiber)) return;
    }
    for (const Fiber& fiber : fibers_) {
        Words reason = fiber.is_done ? "" : vain_wait_of(fiber);
        if (!reason.is_empty()) return report_fault(fiber, reason);
    }
    failure_.kind = Failure::Kind::kDeadlock;
}

void Cluster::end(Fiber& fiber) {
    if (fiber.repeat) check_repeat(fiber);
    finish_stores(fiber);
    check_thread_copies_are_awaited(fiber);
    check_mmas_are_done(fiber);
    if (fiber.cta->live == 1) {
        check_register_changes(fiber);
        check_mma_calls(fiber);
        check_nothing_lands(fiber);
        check_no_bytes_missing(fiber);
        check_loads_were_awaited(fiber);
        if (detector_) check_peers_are_done(fiber);
    }
    record(fiber, {.kind = EventKind::kThreadEnd});
    forget_thread(fiber);
    // Waits for all live threads now need one thread less.
    for (Meeting& meeting : fiber.warp->meetings) {
        hold_if_complete(*this, *fiber.warp, meeting, nullptr);
    }
    for (uint32_t number = 0; number < fiber.cta->named.size(); ++number) {
        if (fiber.cta->named[number].threads == 0) release_if_complete(*this, *fiber.cta, number);
    }
}

}  // namespace tmaasync_emulate
