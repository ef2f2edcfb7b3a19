#include "barriers/mbarrier.hpp"

#include "barriers/init_order.hpp"
#include "barriers/releases.hpp"
#include "memory/accesses.hpp"
#include "schedule/events.hpp"
#include "state/names.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

static void check_barrier_place(Fiber& fiber, uint32_t offset) {
    if (offset % 8) {
        fail(fiber, {FaultKind::kMbarrierPlace, shared_at(offset)});
    }
    check_inside_shared(fiber, offset, 8, FaultKind::kMbarrier);
}

Mbarrier* find_barrier(Cta& cta, uint32_t offset, Reason& reason) {
    const bool is_placed = offset % 8 == 0 && offset / 8 < cta.barrier_at.size();
    const int32_t index = is_placed ? cta.barrier_at[offset / 8] : -1;
    if (index < 0) {
        reason = {FaultKind::kMbarrierUninitialised, barrier_at(offset)};
        return nullptr;
    }
    if (!cta.barriers[static_cast<size_t>(index)].is_valid) {
        reason = {FaultKind::kMbarrierInvalidated, barrier_at(offset)};
        return nullptr;
    }
    Mbarrier& barrier = cta.barriers[static_cast<size_t>(index)];
    if (*barrier_word(cta, offset) != barrier.word) {
        reason = {FaultKind::kMbarrierOverwritten, barrier_at(offset)};
        return nullptr;
    }
    return &barrier;
}

Mbarrier& require_barrier(Fiber& fiber, Place place) {
    Reason reason;
    Mbarrier* barrier = find_barrier(*place.cta, place.offset, reason);
    if (!barrier) fail(fiber, reason);
    return *barrier;
}

// Publishes to the waiters everything that the completed phase's arrivals and loads released.
static void hand_on(Detector& detector, Mbarrier& barrier) {
    barrier.races.completed = std::exchange(barrier.races.gathered, {});
    for (const Fiber* waiter : barrier.waiters) {
        if (waiter->wait.acquires) {
            detector.acquire(waiter->number, barrier.races.completed);
        } else {
            detector.acquire_relaxed(waiter->number, barrier.races.completed);
        }
    }
}

Event on_barrier(EventKind kind, const Cta& owner, const Mbarrier& barrier) {
    return {
        .barrier = barrier.offset,
        .phase = static_cast<uint32_t>(barrier.phase),
        .kind = kind,
        .other = static_cast<uint16_t>(owner.rank),
    };
}

void complete_phase(Cluster& cluster, const Cta& owner, Mbarrier& barrier) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    record(cluster, owner, on_barrier(EventKind::kPhaseCompleted, owner, barrier));
    barrier.history.expected_in(barrier.phase) = std::exchange(barrier.expected, 0);
    ++barrier.phase;
    barrier.pending = barrier.count;
    std::swap(barrier.history.arrived_before, barrier.history.arrived);
    barrier.history.arrived.clear();
    barrier.history.arrived_first = barrier.history.gave_up_last = {};
    if (!barrier.history.landings.empty()) {
        barrier.history.landed_last.swap(barrier.history.landings);
        barrier.history.landings.clear();
    }
    note_progress(cluster);
    if (SyncOrder* order = cluster.launch.order) {
        order->complete(key_of(cluster, owner, barrier.offset));
    }
    if (Detector* detector = cluster.detector.get()) hand_on(*detector, barrier);
    wake_all(barrier.waiters);
}

void note_arrival(const Fiber& fiber, Mbarrier& barrier, uintptr_t site) {
    if (!barrier.history.arrived_first.fiber) barrier.history.arrived_first = {&fiber, site};
    BarrierHistory& history = barrier.history;
    history.arrived.warps.add(warp_number(fiber));
    history.arrived.threads.push_back(fiber.number);
    history.arrivers.add(warp_number(fiber));
    if (history.has_arrived.size() <= fiber.number) history.has_arrived.resize(fiber.number + 1);
    if (history.has_arrived[fiber.number]) return;
    history.has_arrived[fiber.number] = true;
    ++history.arriving_threads;
}

static bool is_in_use(const Mbarrier& barrier) {
    return barrier.pending != barrier.count || barrier.bytes || barrier.waiting;
}

void init_barrier(Fiber& fiber, uint32_t address, uint32_t count) {
    const Place place = resolve(fiber, address);
    check_barrier_place(fiber, place.offset);
    if (count == 0 || count > kMaxArrivals) {
        fail(fiber, {FaultKind::kMbarrierCount, count});
    }
    int32_t& index = place.cta->barrier_at[place.offset / 8];
    if (index < 0) {
        index = static_cast<int32_t>(place.cta->barriers.size());
        place.cta->barriers.emplace_back();
    }
    Mbarrier& barrier = place.cta->barriers[static_cast<size_t>(index)];
    if (barrier.is_valid) {
        if (fiber.cluster->detector) {
            check_init_is_seen(fiber, *place.cta, barrier, Operation::kBarrierInit);
        }
        fail(
            fiber, {FaultKind::kMbarrierInitAgain, barrier_at(barrier.offset),
                    is_in_use(barrier) ? FaultKind::kWhileInUse : FaultKind::kWithoutInval}
        );
    }
    const uint64_t word = 0x6d62617272000000 + place.offset * 0x9e3779b97f4a7c15;
    barrier = {};
    barrier.offset = place.offset;
    barrier.count = barrier.pending = count;
    barrier.word = word;
    barrier.is_valid = true;
    barrier.init_site = fiber.site;
    if (Detector* detector = fiber.cluster->detector.get()) {
        touch_shared(fiber, Operation::kBarrierInit, place.cta->rank, place.offset, 8, true);
        barrier.races.initialiser = fiber.number;
        barrier.races.initialised = detector->epoch_of(fiber.number);
        barrier.races.agent = detector->new_agent();
    }
    if (SyncOrder* order = fiber.cluster->launch.order) {
        order->begin(key_of(*fiber.cluster, *place.cta, place.offset));
    }
    *barrier_word(*place.cta, place.offset) = word;
}

void invalidate_barrier(Fiber& fiber, uint32_t address) {
    Mbarrier& barrier = require_barrier(fiber, resolve(fiber, address));
    if (barrier.waiting) {
        fail(fiber, {FaultKind::kMbarrierIsAwaited, barrier_at(barrier.offset), barrier.waiting});
    }
    barrier.is_valid = false;
}

Reason overflow_of(const Mbarrier& barrier) {
    if (std::abs(barrier.bytes) <= kMaxTransactionBytes) return {};
    return {FaultKind::kTooManyBytes, barrier_at(barrier.offset), barrier.bytes};
}

static void note_expected(Fiber& fiber, const Cta& owner, const Mbarrier& barrier, uint32_t bytes) {
    fiber.past.expected = {&owner, barrier.offset, barrier.phase};
    Event event = on_barrier(EventKind::kExpect, owner, barrier);
    event.bytes = bytes;
    record(fiber, event);
}

static void add_bytes(Fiber& fiber, Mbarrier& barrier, int64_t bytes) {
    barrier.bytes += bytes;
    barrier.expected += std::max<int64_t>(bytes, 0);
    if (bytes > 0) barrier.history.expected_last = {&fiber, fiber.site};
    const Reason reason = overflow_of(barrier);
    if (reason) fail(fiber, reason);
}

void check_completes_nothing(Fiber& fiber, uint32_t address, uint32_t count) {
    const Mbarrier& barrier = require_barrier(fiber, locate(fiber, address));
    if (count < barrier.pending || barrier.bytes != 0) return;
    fail(fiber, {FaultKind::kArrivalCompletes, barrier.phase, barrier_at(barrier.offset)});
}

Reason number_of_arrivals(uint32_t count) {
    return count == 1 ? Reason(FaultKind::kOneArrival) : Reason(FaultKind::kArrivals, count);
}

Reason too_many_arrivals(const Mbarrier& barrier, uint32_t count) {
    Reason first, bytes;
    const Issuer& arrived_first = barrier.history.arrived_first;
    if (arrived_first.fiber) first = {FaultKind::kArrivedFirst, name_of(arrived_first)};
    if (barrier.bytes) {
        const bool is_short = barrier.bytes > 0;
        bytes = {
            is_short ? FaultKind::kUntilLanded : FaultKind::kUntilExpected, std::abs(barrier.bytes)
        };
    }
    Reason reason(
        FaultKind::kTooManyArrivals, barrier_at(barrier.offset), number_of_arrivals(count),
        barrier.phase, barrier.count
    );
    barrier.pending ? reason.add(barrier.pending) : reason.add(FaultKind::kNoMore);
    reason.add(first);
    reason.add(bytes);
    return reason;
}

uint64_t arrive(Fiber& fiber, uint32_t address, uint32_t count, uint32_t bytes, bool releases) {
    maybe_yield(fiber);
    SyncOrder* const order = fiber.cluster->launch.order;
    if (order) order->hold(fiber);
    const Place place = locate(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (Detector* detector = fiber.cluster->detector.get()) {
        check_init_is_seen(fiber, *place.cta, barrier);
        if (place.cta != fiber.cta) {
            auto& noted = releases ? place.cta->races.remote : place.cta->races.remote_arrivals;
            note_remote(noted, remote_access(fiber));
        }
        if (releases) {
            detector->release(fiber.number, barrier.races.gathered);
        } else {
            detector->release_relaxed(fiber.number, barrier.races.gathered);
        }
    }
    const uint64_t phase = barrier.phase;
    if (bytes) note_expected(fiber, *place.cta, barrier, bytes);
    add_bytes(fiber, barrier, bytes);
    if (count == 0) {
        fail(fiber, {FaultKind::kNoArrivals, barrier_at(barrier.offset), phase});
    }
    if (count > barrier.pending) {
        const Reason early = released_unfilled(fiber, *place.cta, barrier, count);
        fail(fiber, early ? early : too_many_arrivals(barrier, count));
    }
    record(fiber, on_barrier(EventKind::kArrive, *place.cta, barrier));
    if (order)
        order->arrive(key_of(*fiber.cluster, *place.cta, barrier.offset), order->count(fiber));
    barrier.pending -= count;
    note_arrival(fiber, barrier, fiber.site);
    complete_phase(*fiber.cluster, *place.cta, barrier);
    return phase;
}

uint64_t arrive_and_drop(Fiber& fiber, uint32_t address, uint32_t count, bool releases) {
    const Place place = locate(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (count > barrier.count) fail(fiber, too_many_arrivals(barrier, count));
    barrier.count -= count;
    return arrive(fiber, address, count, 0, releases);
}

void expect_bytes(Fiber& fiber, uint32_t address, uint32_t bytes) {
    const Place place = resolve(fiber, address);
    SyncOrder* const order = fiber.cluster->launch.order;
    if (order) order->hold(fiber);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (order) order->expect(fiber, key_of(*fiber.cluster, *place.cta, barrier.offset));
    note_expected(fiber, *place.cta, barrier, bytes);
    add_bytes(fiber, barrier, bytes);
    // Measured: if the bytes landed before they were expected, the phase completes now.
    complete_phase(*fiber.cluster, *place.cta, barrier);
}

void deliver_bytes(Fiber& fiber, uint32_t address, uint32_t bytes) {
    const Place place = resolve(fiber, address);
    SyncOrder* const order = fiber.cluster->launch.order;
    if (order) order->hold(fiber);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (order) order->land(key_of(*fiber.cluster, *place.cta, barrier.offset), order->count(fiber));
    add_bytes(fiber, barrier, -int64_t{bytes});
    complete_phase(*fiber.cluster, *place.cta, barrier);
}

void begin_async_store(Fiber& fiber, uint32_t address) {
    if (!fiber.cluster->detector) return;
    const Mbarrier& barrier = require_barrier(fiber, locate(fiber, address));
    fiber.races.async_store = barrier.races.agent;
    fiber.races.async_store_epoch = static_cast<Epoch>(barrier.phase) + 1;
}

void end_async_store(Fiber& fiber, uint32_t address, uint32_t bytes) {
    if (fiber.cluster->detector) {
        Mbarrier& barrier = require_barrier(fiber, locate(fiber, address));
        barrier.races.gathered.seen.raise(barrier.races.agent, fiber.races.async_store_epoch);
        barrier.races.gathered.issued_after.raise(
            barrier.races.agent, fiber.races.async_store_epoch
        );
    }
    deliver_bytes(fiber, address, bytes);
    fiber.races.async_store = kNoAgent;
}

}  // namespace tmaasync_emulate
