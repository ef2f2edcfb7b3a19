// Signals between devices: words of global memory.
#pragma once

#include <cstdint>

#include "sanitizer.hpp"

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
inline uint32_t acquire_word(Fiber& fiber, const uint32_t* word) {
    const auto address = reinterpret_cast<uintptr_t>(word);
    fiber.cluster->spin(fiber, {.instruction = "ld.acquire.sys"});
    let_other_clusters_run(fiber, address, false);
    touch_atomically(fiber, address, sizeof(*word), false, Scope::kSystem);
    const uint32_t value = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    if (Detector* detector = fiber.cluster->detector()) detector->fence(fiber.number, true, true);
    return value;
}

inline void record_post(Fiber& fiber, uintptr_t word, uint32_t epoch, const PostedSignal& posted) {
    const Recorder* const recorder = fiber.cluster->recorder();
    if (!recorder) return;
    Posts* const posts = fiber.cluster->launch().posts;
    // record() advances the time by one step first.
    const uint32_t sequence = posts ? posts->add(word, epoch, recorder->time() + 1) : kNothing;
    fiber.cluster->record(
        fiber, {
                   .barrier = posted.signal,
                   .phase = epoch,
                   .kind = EventKind::kSignalPosted,
                   .other = static_cast<uint16_t>(posted.rank),
                   .sequence = sequence,
               }
    );
}

// Records the end of a wait.
inline void record_signal(Fiber& fiber, const uint32_t* word, const AwaitedSignal& awaited) {
    Recorder* const recorder = fiber.cluster->recorder();
    if (!recorder) return;
    const Posts* const posts = fiber.cluster->launch().posts;
    const auto address = reinterpret_cast<uintptr_t>(word);
    const auto* const post = posts ? posts->first_to_reach(address, awaited.epoch) : nullptr;
    if (post) recorder->come_after(post->time);
    fiber.cluster->record(
        fiber, {
                   .barrier = awaited.signal,
                   .phase = awaited.epoch,
                   .kind = EventKind::kSignalWaitEnd,
                   .other = static_cast<uint16_t>(awaited.rank),
                   .sequence = post ? post->sequence : kNothing,
               }
    );
}

inline void check_epoch_increases(Fiber& fiber, const AwaitedSignal& posted, uint32_t old) {
    if (PostedEpochs::is_reached(posted.epoch, old)) return;
    fiber.cluster->fail(
        fiber, "Signals::post: epoch " + decimal(posted.epoch) + " for signal " +
                   decimal(posted.signal) + " of rank " + decimal(posted.rank) +
                   ", which has epoch " + decimal(old) +
                   " already. Epochs only increase: post larger ones. Several threads or ranks "
                   "that post to one signal use post_reduce()"
    );
}

inline const char* name_of(PostedBy by) {
    return by == PostedBy::kPost ? "post()" : "post_reduce()";
}

inline void check_posted_alike(Fiber& fiber, const PostedSignal& posted, PostedBy earlier) {
    if (posted.by == earlier || posted.by == PostedBy::kOther || earlier == PostedBy::kOther) {
        return;
    }
    fiber.cluster->fail(
        fiber, Words("Signals::") + name_of(posted.by) + ": signal " + decimal(posted.signal) +
                   " of rank " + decimal(posted.rank) + " was changed by " + name_of(earlier) +
                   " before. post() sets a signal and overwrites what post_reduce() adds: use one "
                   "of them for all changes of a signal"
    );
}

// Changes a word, with release at system scope.
template <typename Change>
void release_word(Fiber& fiber, uint32_t* word, Change change, PostedSignal posted = {}) {
    const auto address = reinterpret_cast<uintptr_t>(word);
    Detector* const detector = fiber.cluster->detector();
    if (detector) detector->fence(fiber.number, true, true);
    let_other_clusters_run(fiber, address, true);
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    if (detector) {
        check_posted_alike(fiber, posted, detector->note_before_post(address, old));
    }
    touch_atomically(fiber, address, sizeof(*word), true, Scope::kSystem);
    while (!__atomic_compare_exchange_n(
        word, &old, change(old), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST
    )) {}
    if (detector) detector->note_post(address, change(old), posted.by);
    fiber.cluster->note_change();
    record_post(fiber, address, change(old), posted);
    if (fiber.cluster->choices().yields_to_atomics()) fiber.cluster->yield(fiber);
}

inline void wait_for_epoch(Fiber& fiber, const uint32_t* word, const AwaitedSignal& awaited) {
    fiber.cluster->record(fiber, {.kind = EventKind::kWaitBegin});
    const auto address = reinterpret_cast<uintptr_t>(word);
    let_other_clusters_run(fiber, address, false);
    while (true) {
        reach_atomically(fiber, address, sizeof(*word), false, Scope::kSystem);
        const uint32_t seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        if (PostedEpochs::is_reached(seen, awaited.epoch)) {
            Detector* const detector = fiber.cluster->detector();
            if (detector) detector->acquire_epoch(fiber.number, address, seen, awaited.epoch);
            return record_signal(fiber, word, awaited);
        }
        fiber.cluster->spin(
            fiber, {
                       .kind = Wait::Kind::kSignal,
                       .instruction = "Signals::wait",
                       .number = awaited.signal,
                       .rank = awaited.rank,
                       .epoch = awaited.epoch,
                       .seen = seen,
                   }
        );
    }
}

}  // namespace tmaasync_emulate
