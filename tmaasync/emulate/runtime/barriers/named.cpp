#include "barriers/named.hpp"

#include "schedule/events.hpp"
#include "schedule/faults.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

void release_if_complete(Cluster& cluster, Cta& cta, uint32_t number) {
    NamedBarrier& barrier = cta.named[number];
    const uint32_t needed = barrier.threads ? barrier.threads : cta.live;
    if (barrier.arrived == 0 || barrier.arrived < needed) return;
    barrier.arrived = 0;
    barrier.lines = {};
    if (SyncOrder* order = cluster.launch.order) {
        const BarrierKey key = key_of(cluster, cta, kNamed | number);
        order->complete(key);
        for (const Fiber* waiter : barrier.waiters) order->join_published(*waiter, key);
    }
    if (Detector* detector = cluster.detector.get()) {
        for (const Fiber* waiter : barrier.waiters) {
            detector->acquire(waiter->number, barrier.gathered);
        }
        barrier.gathered = {};
    }
    wake_all(barrier.waiters);
}

// __syncthreads() is bar.sync, which all threads of a warp execute together.
static void check_warp_is_together(Fiber& fiber, NamedBarrier& barrier, uint32_t line) {
    const uint32_t warp = fiber.index / 32;
    uint32_t& first = barrier.lines[warp];
    if (first == 0) first = line;
    if (first == line) return;
    break_rule(fiber, {FaultKind::kWarpApartAtBarrier, warp, line, first});
}

// The barrier for `threads` threads; 0 means all of the CTA.
static NamedBarrier& named_barrier(Fiber& fiber, uint32_t number, uint32_t threads) {
    if (number >= fiber.cta->named.size() || threads % 32) {
        fail(fiber, {FaultKind::kNamedBarrierShape, number, threads});
    }
    NamedBarrier& barrier = fiber.cta->named[number];
    const auto whole = static_cast<uint32_t>(fiber.cta->warps.size() * 32);
    const auto count_of = [&](uint32_t given) { return given ? given : whole; };
    if (barrier.arrived && count_of(barrier.threads) != count_of(threads)) {
        fail(
            fiber,
            {FaultKind::kNamedBarrierThreads, number, count_of(threads), count_of(barrier.threads)}
        );
    }
    // A call with the block's size and another with 0 mean the same.
    if (!barrier.arrived || barrier.threads) barrier.threads = threads;
    return barrier;
}

void arrive_at_named(Fiber& fiber, uint32_t number, uint32_t threads, bool waits, uint32_t line) {
    maybe_yield(fiber);
    SyncOrder* const order = fiber.cluster->launch.order;
    if (order) order->hold(fiber);
    NamedBarrier& barrier = named_barrier(fiber, number, threads);
    if (line) check_warp_is_together(fiber, barrier, line);
    const bool is_noted = stands_for_warp(fiber);
    if (is_noted) record(fiber, {.barrier = number, .kind = EventKind::kNamedArrive});
    ++barrier.arrived;
    const BarrierKey key = key_of(*fiber.cluster, *fiber.cta, kNamed | number);
    if (order) order->arrive(key, order->count(fiber));
    if (Detector* detector = fiber.cluster->detector.get()) {
        detector->release(fiber.number, barrier.gathered);
        // The last thread does not wait, so it acquires here.
        if (waits) detector->acquire(fiber.number, barrier.gathered);
    }
    if (waits) barrier.waiters.push_back(&fiber);
    const uint32_t needed = barrier.threads ? barrier.threads : fiber.cta->live;
    if (barrier.arrived >= needed) {
        if (waits) barrier.waiters.pop_back();
        release_if_complete(*fiber.cluster, *fiber.cta, number);
        if (order && waits) order->join_published(fiber, key);
    } else if (waits) {
        block(fiber, {Wait::Kind::kNamedBarrier, "barrier.cta.sync", fiber.cta, number});
    }
    if (waits && is_noted) {
        record(fiber, {.barrier = number, .kind = EventKind::kNamedWaitEnd});
    }
}

uint32_t count_at_barrier(Fiber& fiber, bool value, uint32_t line) {
    auto& votes = fiber.cta->votes;
    const uint32_t place = fiber.votes++ % votes.size();
    votes[place] += value;
    arrive_at_named(fiber, 0, 0, true, line);
    votes[(place + 2) % votes.size()] = 0;
    return votes[place];
}

}  // namespace tmaasync_emulate
