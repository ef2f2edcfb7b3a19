// mbarriers: arrival counts, transaction counts, and phases by their full number.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include "accesses.hpp"

namespace tmaasync_emulate {

constexpr int64_t kMaxTransactionBytes = (1 << 20) - 1;
constexpr uint32_t kMaxArrivals = (1 << 20) - 1;

inline Words barrier_name(const Mbarrier& barrier) {
    return barrier_at(barrier.offset);
}

inline uint64_t* barrier_word(const Cta& cta, uint32_t offset) {
    return reinterpret_cast<uint64_t*>(cta.window + offset);
}

inline void check_barrier_place(Fiber& fiber, uint32_t offset) {
    if (offset % 8) {
        fiber.cluster->fail(
            fiber, "an mbarrier lies at " + shared_at(offset) + "; it must be a multiple of 8"
        );
    }
    check_inside_shared(fiber, offset, 8, "an mbarrier");
}

// Returns null if there is no usable barrier; `reason` then names the cause.
inline Mbarrier* find_barrier(Cta& cta, uint32_t offset, Words& reason) {
    const bool is_placed = offset % 8 == 0 && offset / 8 < cta.barrier_at.size();
    const int32_t index = is_placed ? cta.barrier_at[offset / 8] : -1;
    if (index < 0) {
        reason = barrier_at(offset) +
                 " is used before mbarrier.init. Initialise it, fence, and let the CTA meet first";
        return nullptr;
    }
    if (!cta.barriers[static_cast<size_t>(index)].is_valid) {
        reason = barrier_at(offset) +
                 " is used after mbarrier.inval. Initialise it anew, or invalidate it later";
        return nullptr;
    }
    Mbarrier& barrier = cta.barriers[static_cast<size_t>(index)];
    if (*barrier_word(cta, offset) != barrier.word) {
        reason = barrier_name(barrier) +
                 " was overwritten: something else wrote into its 8 bytes. " +
                 "emulate.scheduled(races=True) reports that write";
        return nullptr;
    }
    return &barrier;
}

inline Mbarrier& require_barrier(Fiber& fiber, Place place) {
    Words reason;
    Mbarrier* barrier = find_barrier(*place.cta, place.offset, reason);
    if (!barrier) fiber.cluster->fail(fiber, reason);
    return *barrier;
}

// Publishes to the waiters everything that the completed phase's arrivals and loads released.
inline void hand_on(Detector& detector, Mbarrier& barrier) {
    barrier.completed = std::exchange(barrier.gathered, {});
    for (const Fiber* waiter : barrier.waiters) {
        if (waiter->wait.acquires) {
            detector.acquire(waiter->number, barrier.completed);
        } else {
            detector.acquire_relaxed(waiter->number, barrier.completed);
        }
    }
}

inline Event on_barrier(EventKind kind, const Cta& owner, const Mbarrier& barrier) {
    return {
        .barrier = barrier.offset,
        .phase = static_cast<uint32_t>(barrier.phase),
        .kind = kind,
        .other = static_cast<uint16_t>(owner.rank),
    };
}

// Begins the next phase if no arrival and no byte is missing.
inline void complete_phase(Cluster& cluster, const Cta& owner, Mbarrier& barrier) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    cluster.record(owner, on_barrier(EventKind::kPhaseCompleted, owner, barrier));
    ++barrier.phase;
    barrier.pending = barrier.count;
    barrier.arrived.clear();
    barrier.arrived_first = barrier.passed_at_first = barrier.gave_up_last = {};
    if (!barrier.landings.empty()) {
        barrier.landed_last.swap(barrier.landings);
        barrier.landings.clear();
    }
    cluster.note_progress();
    barrier.expected = 0;
    if (Detector* detector = cluster.detector()) hand_on(*detector, barrier);
    cluster.wake_all(barrier.waiters);
}

inline void note_arrival(const Fiber& fiber, Mbarrier& barrier, uintptr_t site) {
    if (!barrier.arrived_first.fiber) barrier.arrived_first = {&fiber, site};
    barrier.arrived.add(warp_number(fiber));
    barrier.arrivers.add(warp_number(fiber));
}

inline bool is_in_use(const Mbarrier& barrier) {
    return barrier.pending != barrier.count || barrier.bytes || barrier.waiting;
}

inline void init_barrier(Fiber& fiber, uint32_t address, uint32_t count) {
    const Place place = resolve(fiber, address);
    check_barrier_place(fiber, place.offset);
    if (count == 0 || count > kMaxArrivals) {
        fiber.cluster->fail(
            fiber, "mbarrier.init counts " + decimal(count) + " arrivals; 1 to 1048575 are possible"
        );
    }
    int32_t& index = place.cta->barrier_at[place.offset / 8];
    if (index < 0) {
        index = static_cast<int32_t>(place.cta->barriers.size());
        place.cta->barriers.emplace_back();
    }
    Mbarrier& barrier = place.cta->barriers[static_cast<size_t>(index)];
    if (barrier.is_valid) {
        if (fiber.cluster->detector()) {
            check_init_is_seen(fiber, *place.cta, barrier, Operation::kBarrierInit);
        }
        fiber.cluster->fail(
            fiber, barrier_name(barrier) + " is initialised again " +
                       (is_in_use(barrier) ? "while in use" : "without mbarrier.inval") +
                       ". Initialise it once, by one thread"
        );
    }
    const uint64_t word = 0x6d62617272000000 + place.offset * 0x9e3779b97f4a7c15;
    barrier = {};
    barrier.offset = place.offset;
    barrier.count = barrier.pending = count;
    barrier.word = word;
    barrier.is_valid = true;
    if (Detector* detector = fiber.cluster->detector()) {
        touch_shared(fiber, Operation::kBarrierInit, place.cta->rank, place.offset, 8, true);
        barrier.initialiser = fiber.number;
        barrier.initialised = detector->epoch_of(fiber.number);
        barrier.init_site = fiber.site;
        barrier.agent = detector->new_agent();
    }
    *barrier_word(*place.cta, place.offset) = word;
}

inline void invalidate_barrier(Fiber& fiber, uint32_t address) {
    Mbarrier& barrier = require_barrier(fiber, resolve(fiber, address));
    if (barrier.waiting) {
        fiber.cluster->fail(
            fiber, barrier_name(barrier) + " is invalidated while " + decimal(barrier.waiting) +
                       " threads wait on it. Let all of them meet after their last wait"
        );
    }
    barrier.is_valid = false;
}

// The reason of the fault if the transaction count overflows; else empty.
inline Words overflow_of(const Mbarrier& barrier) {
    if (std::abs(barrier.bytes) <= kMaxTransactionBytes) return "";
    return barrier_name(barrier) + " would have " + decimal(barrier.bytes) +
           " bytes to come; its count holds 1048575 either way. Expect as many bytes per phase as "
           "its copies deliver";
}

inline void record_expected(
    Fiber& fiber, const Cta& owner, const Mbarrier& barrier, uint32_t bytes
) {
    Event event = on_barrier(EventKind::kExpect, owner, barrier);
    event.bytes = bytes;
    fiber.cluster->record(fiber, event);
}

inline void add_bytes(Fiber& fiber, Mbarrier& barrier, int64_t bytes) {
    barrier.bytes += bytes;
    barrier.expected += std::max<int64_t>(bytes, 0);
    barrier.expected_last = {&fiber, fiber.site};
    const Words reason = overflow_of(barrier);
    if (!reason.is_empty()) fiber.cluster->fail(fiber, reason);
}

// PTX ISA, mbarrier.arrive: with .noComplete an arrival that completes the phase is undefined.
inline void check_completes_nothing(Fiber& fiber, uint32_t address, uint32_t count) {
    const Mbarrier& barrier = require_barrier(fiber, locate(fiber, address));
    if (count < barrier.pending || barrier.bytes != 0) return;
    fiber.cluster->fail(
        fiber, "an arrival with .noComplete completes phase " + decimal(barrier.phase) + " of " +
                   barrier_name(barrier) + ", which is undefined. Leave out .noComplete"
    );
}

inline Words too_many_arrivals(const Mbarrier& barrier, uint32_t count) {
    Words before;
    if (barrier.arrived_first.fiber) {
        before = "; " + name_of(barrier.arrived_first) + " arrived first";
    }
    if (barrier.bytes) {
        before << "; the phase lasts until " + decimal(std::abs(barrier.bytes)) +
                      (barrier.bytes > 0 ? " bytes have landed"
                                         : " bytes that landed are expected");
    }
    return barrier_name(barrier) + " gets " + decimal(count) +
           (count == 1 ? " arrival" : " arrivals") + " in phase " + decimal(barrier.phase) +
           ", which counts " + decimal(barrier.count) + " and waits for " +
           (barrier.pending ? decimal(barrier.pending) : "no more") + before +
           ". Wait for the empty barrier before a stage is filled again, and let no more "
           "threads arrive than init() counts";
}

// Expects bytes, then arrives. Returns the state token, which is the number of the phase.
inline uint64_t arrive(
    Fiber& fiber, uint32_t address, uint32_t count, uint32_t bytes, bool releases
) {
    fiber.cluster->maybe_yield(fiber);
    const Place place = locate(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (Detector* detector = fiber.cluster->detector()) {
        check_init_is_seen(fiber, *place.cta, barrier);
        if (place.cta != fiber.cta) {
            auto& noted = releases ? place.cta->remote : place.cta->remote_arrivals;
            note_remote(noted, remote_access(fiber));
        }
        if (releases) {
            detector->release(fiber.number, barrier.gathered);
        } else {
            detector->release_relaxed(fiber.number, barrier.gathered);
        }
    }
    const uint64_t phase = barrier.phase;
    if (bytes) record_expected(fiber, *place.cta, barrier, bytes);
    add_bytes(fiber, barrier, bytes);
    if (count == 0) {
        fiber.cluster->fail(
            fiber, barrier_name(barrier) + " gets 0 arrivals in phase " + decimal(phase) +
                       "; one instruction arrives 1 to 1048575 times. Arrive, or leave it out"
        );
    }
    if (count > barrier.pending) fiber.cluster->fail(fiber, too_many_arrivals(barrier, count));
    fiber.cluster->record(fiber, on_barrier(EventKind::kArrive, *place.cta, barrier));
    barrier.pending -= count;
    note_arrival(fiber, barrier, fiber.site);
    complete_phase(*fiber.cluster, *place.cta, barrier);
    return phase;
}

// Arrives, and lowers the arrival count of all later phases.
inline uint64_t arrive_and_drop(Fiber& fiber, uint32_t address, uint32_t count, bool releases) {
    const Place place = locate(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (count > barrier.count) fiber.cluster->fail(fiber, too_many_arrivals(barrier, count));
    barrier.count -= count;
    return arrive(fiber, address, count, 0, releases);
}

inline void expect_bytes(Fiber& fiber, uint32_t address, uint32_t bytes) {
    const Place place = resolve(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    record_expected(fiber, *place.cta, barrier, bytes);
    add_bytes(fiber, barrier, bytes);
    // Measured: if the bytes landed before they were expected, the phase completes now.
    complete_phase(*fiber.cluster, *place.cta, barrier);
}

inline void deliver_bytes(Fiber& fiber, uint32_t address, uint32_t bytes) {
    const Place place = resolve(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    add_bytes(fiber, barrier, -int64_t{bytes});
    complete_phase(*fiber.cluster, *place.cta, barrier);
}

// st.async and red.async, which the emulator executes at once. A thread that waits for the phase
// sees the stored bytes, and no other access of the storing thread.
inline void begin_async_store(Fiber& fiber, uint32_t address) {
    if (!fiber.cluster->detector()) return;
    const Mbarrier& barrier = require_barrier(fiber, locate(fiber, address));
    fiber.store_agent = barrier.agent;
    fiber.store_epoch = static_cast<Epoch>(barrier.phase) + 1;
}

inline void end_async_store(Fiber& fiber, uint32_t address, uint32_t bytes) {
    if (fiber.cluster->detector()) {
        Mbarrier& barrier = require_barrier(fiber, locate(fiber, address));
        barrier.gathered.seen.raise(barrier.agent, fiber.store_epoch);
        barrier.gathered.issued_after.raise(barrier.agent, fiber.store_epoch);
    }
    deliver_bytes(fiber, address, bytes);
    fiber.store_agent = kNoAgent;
}

inline bool has_completed(const Mbarrier& barrier, uint32_t parity) {
    return (barrier.phase & 1) != (parity & 1);
}

inline void acquire_completed(Fiber& fiber, const Mbarrier& barrier, bool acquires) {
    Detector* detector = fiber.cluster->detector();
    if (!detector) return;
    if (acquires) {
        detector->acquire(fiber.number, barrier.completed);
    } else {
        detector->acquire_relaxed(fiber.number, barrier.completed);
    }
}

// Notes that a wait has seen the completion of all phases before the current one.
inline void observe(Mbarrier& barrier) {
    barrier.observed = std::max(barrier.observed, barrier.phase);
}

// A wait names only the parity of a phase. If the next phase completes too before the waiter looks,
// the barrier is back at the awaited parity: on the chip the wait may last for ever.
inline void check_not_missed(Fiber& fiber, const Mbarrier& barrier, uint64_t awaited) {
    if (barrier.phase <= awaited + 1) return;
    fiber.cluster->fail(
        fiber,
        barrier_name(barrier) + " completed phase " + decimal(awaited + 1) +
            " while this thread was still waiting for phase " + decimal(awaited) +
            ", which its parity does not distinguish any more. Let whoever completes a phase "
            "wait for every reader of the one before, on an empty barrier say"
    );
}

inline void record_wait(Fiber& fiber, EventKind kind, const AwaitedPhase& awaited) {
    fiber.cluster->record(
        fiber, {
                   .barrier = awaited.barrier,
                   .phase = awaited.phase,
                   .kind = kind,
                   .other = static_cast<uint16_t>(awaited.rank),
               }
    );
}

// The phase that a wait for this parity waits for.
inline AwaitedPhase awaited_phase(const Cta& owner, const Mbarrier& barrier, uint32_t parity) {
    const uint64_t phase = barrier.phase - (has_completed(barrier, parity) ? 1 : 0);
    return {owner.rank, barrier.offset, static_cast<uint32_t>(phase)};
}

// Records the start of a wait. A wait that returned false goes on when the thread repeats it.
inline void begin_wait(Fiber& fiber, const AwaitedPhase& awaited) {
    Recorder* recorder = fiber.cluster->recorder();
    if (!recorder || fiber.noted_wait == awaited) return;
    if (!recorder->stands_for_warp(fiber.rank * 32 + fiber.index / 32, fiber.lane, awaited)) return;
    fiber.noted_wait = awaited;
    record_wait(fiber, EventKind::kWaitBegin, awaited);
}

inline void end_wait(Fiber& fiber, const AwaitedPhase& awaited) {
    if (!fiber.cluster->recorder() || fiber.noted_wait != awaited) return;
    fiber.noted_wait = {};
    record_wait(fiber, EventKind::kWaitEnd, awaited);
}

// PTX ISA, mbarrier.try_wait: "the valid values of phaseParity operand are 0 and 1".
inline void check_parity(Fiber& fiber, uint32_t parity, const char* what) {
    if (parity <= 1) return;
    fiber.cluster->fail(
        fiber, Words(what) + " for parity " + decimal(static_cast<int32_t>(parity)) +
                   "; a phase has parity 0 or 1. Pass the phase of a PipelineState, or the number "
                   "of the phase modulo 2"
    );
}

// Suspends the thread until the phase of this parity completes, or for a limited time.
inline bool wait_for_parity(
    Fiber& fiber, uint32_t address, uint32_t parity, bool acquires, const char* what
) {
    fiber.cluster->maybe_yield(fiber);
    check_parity(fiber, parity, what);
    const Place place = resolve(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (fiber.cluster->detector()) check_init_is_seen(fiber, *place.cta, barrier);
    const AwaitedPhase noted = awaited_phase(*place.cta, barrier, parity);
    begin_wait(fiber, noted);
    barrier.waited.add(warp_number(fiber));
    if (barrier.gave_up_last.fiber == &fiber) barrier.gave_up_last = {};
    if (has_completed(barrier, parity)) {
        if (barrier.phase == 0) barrier.passed_at_first = {&fiber, fiber.site};
    } else {
        if (fiber.cluster->choices().times_out_at_once(fiber.site)) {
            barrier.gave_up_last = {&fiber, fiber.site};
            return false;
        }
        const uint64_t awaited = barrier.phase;
        const Wait wait{Wait::Kind::kMbarrier, what, place.cta, barrier.offset, parity, acquires};
        ++barrier.waiting;
        if (fiber.cluster->choices().times_out()) {
            fiber.cluster->spin(fiber, wait);
        } else {
            barrier.waiters.push_back(&fiber);
            fiber.cluster->block(fiber, wait);
        }
        --barrier.waiting;
        check_not_missed(fiber, barrier, awaited);
        if (barrier.phase == awaited) {
            barrier.gave_up_last = {&fiber, fiber.site};
            return false;
        }
    }
    observe(barrier);
    acquire_completed(fiber, barrier, acquires);
    end_wait(fiber, noted);
    return true;
}

// Polls without suspending, and lets others run if the phase is not complete.
inline bool test_parity(Fiber& fiber, uint32_t address, uint32_t parity, bool acquires) {
    check_parity(fiber, parity, "mbarrier.test_wait.parity");
    const Place place = resolve(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (fiber.cluster->detector()) check_init_is_seen(fiber, *place.cta, barrier);
    const bool is_complete = has_completed(barrier, parity);
    barrier.waited.add(warp_number(fiber));
    if (is_complete) {
        observe(barrier);
        acquire_completed(fiber, barrier, acquires);
        const AwaitedPhase noted = awaited_phase(*place.cta, barrier, parity);
        begin_wait(fiber, noted);
        end_wait(fiber, noted);
    } else {
        fiber.cluster->spin(
            fiber,
            {Wait::Kind::kMbarrier, "mbarrier.test_wait.parity", place.cta, barrier.offset, parity}
        );
    }
    return is_complete;
}

// Tests a state token, which is the number of its phase.
inline bool test_state(Fiber& fiber, uint32_t address, uint64_t state) {
    const uint64_t phase = require_barrier(fiber, resolve(fiber, address)).phase;
    if (phase < state || phase - state > 1) {
        fiber.cluster->fail(
            fiber, "a state token of phase " + decimal(state) + " is tested in phase " +
                       decimal(phase) +
                       "; it is good in its own phase and the next. Test it earlier"
        );
    }
    return test_parity(fiber, address, static_cast<uint32_t>(state & 1), true);
}

}  // namespace tmaasync_emulate
