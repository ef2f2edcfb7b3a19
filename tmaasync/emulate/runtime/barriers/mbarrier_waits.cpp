#include "barriers/mbarrier_waits.hpp"

#include "barriers/init_order.hpp"
#include "barriers/mbarrier.hpp"
#include "schedule/events.hpp"
#include "state/names.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

static bool has_completed(const Mbarrier& barrier, uint32_t parity) {
    return (barrier.phase & 1) != parity;
}

static void acquire_completed(Fiber& fiber, const Mbarrier& barrier, bool acquires) {
    Detector* detector = fiber.cluster->detector.get();
    if (!detector) return;
    if (acquires) {
        detector->acquire(fiber.number, barrier.races.completed);
    } else {
        detector->acquire_relaxed(fiber.number, barrier.races.completed);
    }
}

// Notes that a wait has seen the completion of all phases before the current one.
static void observe(Fiber& fiber, const Cta& owner, Mbarrier& barrier) {
    constexpr std::size_t kKept = 16;
    barrier.observed = std::max(barrier.observed, barrier.phase);
    fiber.past.expected = {};
    auto& waits = fiber.past.waits;
    if (waits.size() == 2 * kKept) waits.erase(waits.begin(), waits.begin() + kKept);
    const Detector* const detector = fiber.cluster->detector.get();
    const uint32_t order = detector ? detector->order() : 0;
    waits.push_back({&owner, barrier.offset, barrier.phase - 1, order, fiber.site});
    if (SyncOrder* const verified = fiber.cluster->launch.order) {
        verified->pass(fiber, key_of(*fiber.cluster, owner, barrier.offset));
    }
}

// A wait names only the parity of a phase. If the next phase completes too before the waiter looks,
// the barrier is back at the awaited parity: on the chip the wait may last for ever.
static void check_not_missed(Fiber& fiber, const Mbarrier& barrier, uint64_t awaited) {
    if (barrier.phase <= awaited + 1) return;
    Reason count;
    if (const uint32_t threads = barrier.history.arriving_threads; threads > barrier.count) {
        count = {FaultKind::kCountsTooFew, number_of_arrivals(barrier.count), threads};
    }
    fail(fiber, {FaultKind::kMissedPhase, barrier_at(barrier.offset), awaited + 1, awaited, count});
}

static void record_wait(Fiber& fiber, EventKind kind, const AwaitedPhase& awaited) {
    record(
        fiber, {
                   .barrier = awaited.barrier,
                   .phase = awaited.phase,
                   .kind = kind,
                   .other = static_cast<uint16_t>(awaited.rank),
               }
    );
}

// The phase that a wait for this parity waits for.
static AwaitedPhase awaited_phase(const Cta& owner, const Mbarrier& barrier, uint32_t parity) {
    const uint64_t phase = barrier.phase - (has_completed(barrier, parity) ? 1 : 0);
    return {owner.rank, barrier.offset, static_cast<uint32_t>(phase)};
}

// Records the start of a wait. A wait that returned false goes on when the thread repeats it.
static void begin_wait(Fiber& fiber, const AwaitedPhase& awaited) {
    Recorder* recorder = fiber.cluster->recorder.get();
    if (!recorder || fiber.trace.wait == awaited) return;
    if (!recorder->stands_for_warp(fiber.rank * 32 + fiber.index / 32, fiber.lane, awaited)) return;
    fiber.trace.wait = awaited;
    record_wait(fiber, EventKind::kWaitBegin, awaited);
}

static void end_wait(Fiber& fiber, const AwaitedPhase& awaited) {
    if (!fiber.cluster->recorder || fiber.trace.wait != awaited) return;
    fiber.trace.wait = {};
    record_wait(fiber, EventKind::kWaitEnd, awaited);
}

// PTX ISA, mbarrier.try_wait: "the valid values of phaseParity operand are 0 and 1".
// ptxas moves bit 0 to the place that the chip reads (SHF.L.U32 by 31, CUDA 13.0, sm_90a).
static uint32_t checked_parity(Fiber& fiber, uint32_t parity, const char* what) {
    if (parity > 1) break_rule(fiber, {FaultKind::kParity, what, static_cast<int32_t>(parity)});
    return parity & 1;
}

bool wait_for_parity(
    Fiber& fiber, uint32_t address, uint32_t parity, bool acquires, const char* what
) {
    maybe_yield(fiber);
    if (SyncOrder* const order = fiber.cluster->launch.order) order->hold(fiber);
    parity = checked_parity(fiber, parity, what);
    const Place place = resolve(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (fiber.cluster->detector) check_init_is_seen(fiber, *place.cta, barrier);
    const AwaitedPhase noted = awaited_phase(*place.cta, barrier, parity);
    begin_wait(fiber, noted);
    barrier.history.waited.add(warp_number(fiber));
    if (barrier.history.gave_up_last.fiber == &fiber) barrier.history.gave_up_last = {};
    if (has_completed(barrier, parity)) {
        Issuer& passed = barrier.history.passed_at_first;
        if (barrier.phase == 0 && !passed.fiber) passed = {&fiber, fiber.site};
    } else {
        if (fiber.cluster->choices.times_out_at_once(fiber.site)) {
            barrier.history.gave_up_last = {&fiber, fiber.site};
            return false;
        }
        const uint64_t awaited = barrier.phase;
        const Wait wait{Wait::Kind::kMbarrier, what, place.cta, barrier.offset, parity, acquires};
        ++barrier.waiting;
        if (fiber.cluster->choices.times_out()) {
            spin(fiber, wait);
        } else {
            barrier.waiters.push_back(&fiber);
            block(fiber, wait);
        }
        --barrier.waiting;
        check_not_missed(fiber, barrier, awaited);
        if (barrier.phase == awaited) {
            barrier.history.gave_up_last = {&fiber, fiber.site};
            return false;
        }
    }
    observe(fiber, *place.cta, barrier);
    acquire_completed(fiber, barrier, acquires);
    end_wait(fiber, noted);
    return true;
}

bool test_parity(Fiber& fiber, uint32_t address, uint32_t parity, bool acquires) {
    if (SyncOrder* const order = fiber.cluster->launch.order) order->hold(fiber);
    parity = checked_parity(fiber, parity, "mbarrier.test_wait.parity");
    const Place place = resolve(fiber, address);
    Mbarrier& barrier = require_barrier(fiber, place);
    if (fiber.cluster->detector) check_init_is_seen(fiber, *place.cta, barrier);
    const bool is_complete = has_completed(barrier, parity);
    barrier.history.waited.add(warp_number(fiber));
    if (is_complete) {
        observe(fiber, *place.cta, barrier);
        acquire_completed(fiber, barrier, acquires);
        const AwaitedPhase noted = awaited_phase(*place.cta, barrier, parity);
        begin_wait(fiber, noted);
        end_wait(fiber, noted);
    } else {
        spin(
            fiber,
            {Wait::Kind::kMbarrier, "mbarrier.test_wait.parity", place.cta, barrier.offset, parity}
        );
    }
    return is_complete;
}

bool test_state(Fiber& fiber, uint32_t address, uint64_t state) {
    const uint64_t phase = require_barrier(fiber, resolve(fiber, address)).phase;
    if (phase < state || phase - state > 1) {
        fail(fiber, {FaultKind::kOldStateToken, state, phase});
    }
    return test_parity(fiber, address, static_cast<uint32_t>(state & 1), true);
}

}  // namespace tmaasync_emulate
