// cp.async: copies that each thread makes for itself, in its own groups or counted by an mbarrier.
//
// For the race detector, the copies of a thread are a separate agent. They happen after the
// thread's earlier accesses, and before nothing but a wait for them. They belong to the generic
// proxy (PTX ISA: only bulk copies and wgmma belong to the async proxy).
#pragma once

#include <cstring>
#include <utility>
#include "mbarrier.hpp"

namespace tmaasync_emulate {

// --- landing -------------------------------------------------------------------------------------

inline void land_thread_copy(Fiber& fiber, const ThreadCopy& copy) {
    uint8_t* target = fiber.cta->window + copy.shared;
    std::memcpy(target, copy.global, copy.source_bytes);
    std::memset(target + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    Detector* detector = fiber.cluster->detector();
    if (!detector) return;
    Actor actor = copy.issued.as(fiber.copies_agent, copy.epoch, Operation::kThreadCopy);
    actor.is_async = false;
    if (copy.source_bytes) {
        const auto address = reinterpret_cast<uintptr_t>(copy.global);
        detector->global(actor, address, copy.source_bytes, false);
    }
    detector->shared(actor, fiber.cta->rank, copy.shared, copy.bytes, true);
}

// Lands all copies that were issued up to this epoch.
inline void land_thread_copies(Fiber& fiber, Epoch epoch) {
    auto& copies = fiber.copies;
    auto next = copies.begin();
    for (; next != copies.end() && next->epoch <= epoch; ++next) land_thread_copy(fiber, *next);
    copies.erase(copies.begin(), next);
}

// Arrives on the barrier for a thread's copies, which then happen before a wait for the phase.
inline void arrive_for_copies(Cluster& cluster, const Flight& flight, Mbarrier& barrier) {
    if (cluster.detector() && flight.issuer->copies_agent != kNoAgent) {
        barrier.gathered.seen.raise(flight.issuer->copies_agent, flight.epoch);
        barrier.gathered.issued_after.raise(flight.issuer->copies_agent, flight.epoch);
    }
    if (barrier.pending == 0) {
        return cluster.report_fault(*flight.issuer, too_many_arrivals(barrier, 1), flight.site);
    }
    cluster.record(*flight.target, on_barrier(EventKind::kArrive, *flight.target, barrier));
    --barrier.pending;
    note_arrival(*flight.issuer, barrier, flight.site);
    complete_phase(cluster, *flight.target, barrier);
}

// --- instructions of a thread --------------------------------------------------------------------

inline void check_thread_copy(Fiber& fiber, const ThreadCopy& copy) {
    const auto address = reinterpret_cast<uintptr_t>(copy.global);
    const Words size = decimal(copy.bytes);
    if (copy.source_bytes > copy.bytes) {
        fiber.cluster->fail(
            fiber, "cp.async of " + size + " bytes reads " + decimal(copy.source_bytes) +
                       "; it can read no more than it writes"
        );
    }
    if (copy.shared % copy.bytes || address % copy.bytes) {
        fiber.cluster->fail(
            fiber, "cp.async of " + size + " bytes from " + hexadecimal(address) +
                       " to shared address " + decimal(copy.shared) +
                       "; both must be multiples of " + size + ". Copy fewer bytes at once"
        );
    }
    check_inside_shared(fiber, copy.shared, copy.bytes, "cp.async");
    if (copy.source_bytes && !fiber.cluster->launch().may_hold(address, copy.source_bytes)) {
        fiber.cluster->fail(
            fiber, "a cp.async reads " + decimal(copy.source_bytes) + " bytes at " +
                       hexadecimal(address) +
                       ", which lies in none of the launch's arrays. Check indices, and copy what "
                       "lies beyond an edge with cp_async_gs_zero_fill"
        );
    }
}

inline void issue_thread_copy(Fiber& fiber, ThreadCopy copy) {
    check_thread_copy(fiber, copy);
    if (copy.source_bytes) check_grids_awaited(fiber, reinterpret_cast<uintptr_t>(copy.global));
    copy.epoch = fiber.copies_epoch;
    copy.site = fiber.site;
    if (Detector* detector = fiber.cluster->detector()) {
        bulk_agent(*fiber.cluster, fiber.copies_agent);
        copy.issued = detector->issue(fiber.number, fiber.site);
    }
    fiber.copies.push_back(std::move(copy));
    // Copies of one thread may land in any order. They race if they share bytes, so their order
    // need not vary.
    if (fiber.cluster->choices().reads_at_once()) land_thread_copies(fiber, fiber.copies_epoch);
    if (fiber.cluster->detector()) fiber.cluster->stop_if_race(fiber);
}

inline void commit_thread_copies(Fiber& fiber) {
    fiber.copy_groups.push_back(fiber.copies_epoch++);
}

inline void wait_for_thread_copies(Fiber& fiber, std::size_t pending) {
    fiber.cluster->maybe_yield(fiber);
    auto& groups = fiber.copy_groups;
    if (groups.size() <= pending) return;
    const auto kept = groups.end() - static_cast<std::ptrdiff_t>(pending);
    const Epoch epoch = kept[-1];
    groups.erase(groups.begin(), kept);
    land_thread_copies(fiber, epoch);
    Detector* detector = fiber.cluster->detector();
    if (!detector || fiber.copies_agent == kNoAgent) return;
    detector->finish(fiber.number, fiber.copies_agent, epoch);
    fiber.cluster->stop_if_race(fiber);
}

// The arrival is in flight like a copy. It lands at any time, after the copies that were issued
// before it.
inline void arrive_after_thread_copies(Fiber& fiber, uint32_t address, bool raises) {
    fiber.cluster->maybe_yield(fiber);
    const Place place = resolve(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (fiber.cluster->detector()) check_init_is_seen(fiber, *place.cta, barrier);
    if (raises) {
        if (barrier.pending == kMaxArrivals) {
            fiber.cluster->fail(
                fiber,
                barrier_name(barrier) +
                    " waits for 1048575 arrivals, the most it can; "
                    "cp.async.mbarrier.arrive adds one. Count the arrivals in init and use the "
                    "noinc form"
            );
        }
        ++barrier.pending;
    }
    Flight flight{.kind = Flight::Kind::kArrival};
    flight.target = place.cta;
    flight.barrier = place.offset;
    flight.issuer = &fiber;
    flight.epoch = fiber.copies_epoch++;
    flight.site = fiber.site;
    fiber.cluster->flights().push_back(std::move(flight));
    fiber.cluster->let_land(fiber);
}

// Called at the end of a thread: every copy was waited for, or an arrival in flight covers it.
inline void check_thread_copies_are_awaited(Fiber& fiber) {
    if (fiber.copies.empty()) return;
    for (const Flight& flight : fiber.cluster->flights()) {
        const bool covers = flight.kind == Flight::Kind::kArrival && flight.issuer == &fiber &&
                            flight.epoch >= fiber.copies.back().epoch;
        if (covers) return;
    }
    fiber.cluster->report_fault(
        fiber,
        "the thread ends while copies that it issued with cp.async are in flight. Wait for "
        "them with cp_async_wait_all(), or let mbarrier_cp_async_arrive arrive on a barrier",
        fiber.copies.back().site
    );
    fiber.cluster->fail(fiber, "");
}

}  // namespace tmaasync_emulate
