#include "copies/thread_copies.hpp"

#include "barriers/init_order.hpp"
#include "barriers/mbarrier.hpp"
#include "memory/accesses.hpp"
#include "memory/grids.hpp"
#include "schedule/events.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

static void land_thread_copy(Fiber& fiber, const ThreadCopy& copy) {
    uint8_t* target = fiber.cta->window + copy.shared;
    std::memcpy(target, copy.global, copy.source_bytes);
    std::memset(target + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    Detector* detector = fiber.cluster->detector.get();
    if (!detector) return;
    Actor actor = copy.issued.as(fiber.races.copies, copy.epoch, Operation::kThreadCopy);
    actor.is_async = false;
    if (copy.source_bytes) {
        const auto address = reinterpret_cast<uintptr_t>(copy.global);
        detector->global(actor, address, copy.source_bytes, false);
    }
    detector->shared(actor, fiber.cta->rank, copy.shared, copy.bytes, true);
}

void land_thread_copies(Fiber& fiber, Epoch epoch) {
    auto& copies = fiber.copies.pending;
    auto next = copies.begin();
    for (; next != copies.end() && next->epoch <= epoch; ++next) land_thread_copy(fiber, *next);
    copies.erase(copies.begin(), next);
}

void arrive_for_copies(Cluster& cluster, const Flight& flight, Mbarrier& barrier) {
    if (cluster.detector && flight.issuer->races.copies != kNoAgent) {
        barrier.races.gathered.seen.raise(flight.issuer->races.copies, flight.epoch);
        barrier.races.gathered.issued_after.raise(flight.issuer->races.copies, flight.epoch);
    }
    if (barrier.pending == 0) {
        return report_fault(*flight.issuer, too_many_arrivals(barrier, 1), flight.site);
    }
    record(cluster, *flight.credited, on_barrier(EventKind::kArrive, *flight.credited, barrier));
    if (SyncOrder* order = cluster.launch.order) {
        order->arrive(key_of(cluster, *flight.credited, barrier.offset), *flight.synced);
    }
    --barrier.pending;
    note_arrival(*flight.issuer, barrier, flight.site);
    complete_phase(cluster, *flight.credited, barrier);
}

static void check_thread_copy(Fiber& fiber, const ThreadCopy& copy) {
    const auto address = reinterpret_cast<uintptr_t>(copy.global);
    if (copy.source_bytes > copy.bytes) {
        fail(fiber, {FaultKind::kThreadCopySize, copy.bytes, copy.source_bytes});
    }
    if (copy.shared % copy.bytes || address % copy.bytes) {
        fail(
            fiber,
            {FaultKind::kThreadCopyPlace, copy.bytes, hexadecimal(address), copy.shared, copy.bytes}
        );
    }
    check_inside_shared(fiber, copy.shared, copy.bytes, "cp.async");
    if (copy.source_bytes && !fiber.cluster->launch.memory.may_hold(address, copy.source_bytes)) {
        fail(fiber, {FaultKind::kThreadCopyOutside, copy.source_bytes, hexadecimal(address)});
    }
}

void issue_thread_copy(Fiber& fiber, ThreadCopy copy) {
    copy.shared = own_offset(fiber, copy.shared);
    check_thread_copy(fiber, copy);
    if (copy.source_bytes) check_grids_awaited(fiber, reinterpret_cast<uintptr_t>(copy.global));
    copy.epoch = fiber.copies.epoch;
    copy.site = fiber.site;
    if (Detector* detector = fiber.cluster->detector.get()) {
        bulk_agent(*fiber.cluster, fiber.races.copies);
        copy.issued = detector->issue(fiber.number, fiber.site);
    }
    fiber.copies.pending.push_back(std::move(copy));
    // Copies of one thread may land in any order. They race if they share bytes, so their order
    // need not vary.
    if (fiber.cluster->choices.reads_at_once()) land_thread_copies(fiber, fiber.copies.epoch);
    if (fiber.cluster->detector) stop_if_race(fiber);
}

void commit_thread_copies(Fiber& fiber) {
    fiber.copies.groups.push_back(fiber.copies.epoch++);
}

void wait_for_thread_copies(Fiber& fiber, std::size_t pending) {
    maybe_yield(fiber);
    auto& groups = fiber.copies.groups;
    if (groups.size() <= pending) return;
    const auto kept = groups.end() - static_cast<std::ptrdiff_t>(pending);
    const Epoch epoch = kept[-1];
    groups.erase(groups.begin(), kept);
    land_thread_copies(fiber, epoch);
    Detector* detector = fiber.cluster->detector.get();
    if (!detector || fiber.races.copies == kNoAgent) return;
    detector->finish(fiber.number, fiber.races.copies, epoch);
    stop_if_race(fiber);
}

void arrive_after_thread_copies(Fiber& fiber, uint32_t address, bool raises) {
    maybe_yield(fiber);
    const Place place = resolve(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (fiber.cluster->detector) check_init_is_seen(fiber, *place.cta, barrier);
    if (raises) {
        if (barrier.pending == kMaxArrivals) {
            fail(fiber, {FaultKind::kTooManyThreadCopies, barrier_at(barrier.offset)});
        }
        ++barrier.pending;
    }
    Flight flight{.kind = Flight::Kind::kArrival};
    flight.target = flight.credited = place.cta;
    flight.barrier = place.offset;
    flight.issuer = &fiber;
    flight.epoch = fiber.copies.epoch++;
    flight.site = fiber.site;
    if (SyncOrder* order = fiber.cluster->launch.order) flight.synced = order->issue(fiber);
    fiber.cluster->flights.push_back(std::move(flight));
    let_land(fiber);
}

void check_thread_copies_are_awaited(Fiber& fiber) {
    if (fiber.copies.pending.empty()) return;
    for (const Flight& flight : fiber.cluster->flights) {
        const bool covers = flight.kind == Flight::Kind::kArrival && flight.issuer == &fiber &&
                            flight.epoch >= fiber.copies.pending.back().epoch;
        if (covers) return;
    }
    const uintptr_t site = fiber.copies.pending.back().site;
    if (is_pardoned(fiber, FaultKind::kUnawaitedThreadCopies, site)) {
        return land_thread_copies(fiber, fiber.copies.epoch);
    }
    report_fault(fiber, FaultKind::kUnawaitedThreadCopies, site);
    fail(fiber, {});
}

}  // namespace tmaasync_emulate
