// Signals between devices: words of global memory.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "memory/accesses.hpp"
#include "schedule/scheduler.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

// A signal of one rank, and the awaited epoch.
struct AwaitedSignal {
    uint32_t rank;
    uint32_t signal;
    uint32_t epoch;
};

// The signal that a word belongs to, if the kernel names it, and the kind of change.
struct PostedSignal {
    uint32_t rank = kNobody;
    uint32_t signal = kNothing;
    PostedBy by = PostedBy::kOther;
};

// Reads a word's present value, with acquire at system scope. The read may be a poll.
uint32_t acquire_word(Fiber& fiber, const uint32_t* word);

void record_post(Fiber& fiber, uintptr_t word, uint32_t epoch, const PostedSignal& posted);

void check_epoch_increases(Fiber& fiber, const AwaitedSignal& posted, uint32_t old);

void check_posted_alike(Fiber& fiber, const PostedSignal& posted, PostedBy earlier);

// Changes a word, with release at system scope.
template <typename Change>
void release_word(Fiber& fiber, uint32_t* word, Change change, PostedSignal posted = {}) {
    const auto address = reinterpret_cast<uintptr_t>(word);
    Detector* const detector = fiber.cluster->detector.get();
    if (detector) detector->fence(fiber.number, true, true);
    let_other_clusters_run(fiber, address, true);
    SyncOrder* const order = fiber.cluster->launch.order;
    const bool is_post = posted.by != PostedBy::kOther;
    if (order) {
        const SyncAccess access = is_post ? SyncAccess::kPost : SyncAccess::kReadAndWrite;
        order->access(fiber, address, sizeof(*word), access);
    }
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    if (detector) {
        check_posted_alike(fiber, posted, detector->note_before_post(address, old));
    }
    touch_atomically(fiber, address, sizeof(*word), AtomicAccess::kChange, Scope::kSystem);
    while (!__atomic_compare_exchange_n(
        word, &old, change(old), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST
    )) {}
    if (detector) detector->note_post(address, change(old), posted.by);
    if (order && is_post) order->note_post(address, change(old));
    note_change(*fiber.cluster);
    record_post(fiber, address, change(old), posted);
    if (fiber.cluster->choices.yields_to_atomics()) yield(fiber);
}

void wait_for_epoch(Fiber& fiber, const uint32_t* word, const AwaitedSignal& awaited);

}  // namespace tmaasync_emulate
