#include "signals/signals.hpp"

#include "schedule/events.hpp"
#include "schedule/faults.hpp"
#include "state/names.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

uint32_t acquire_word(Fiber& fiber, const uint32_t* word) {
    const auto address = reinterpret_cast<uintptr_t>(word);
    spin(fiber, {.instruction = "ld.acquire.sys"});
    let_other_clusters_run(fiber, address, false);
    if (SyncOrder* order = fiber.cluster->launch.order) {
        order->access(fiber, address, sizeof(*word), SyncAccess::kRead);
    }
    touch_atomically(fiber, address, sizeof(*word), AtomicAccess::kRead, Scope::kSystem);
    const uint32_t value = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    if (Detector* detector = fiber.cluster->detector.get())
        detector->fence(fiber.number, true, true);
    return value;
}

void record_post(Fiber& fiber, uintptr_t word, uint32_t epoch, const PostedSignal& posted) {
    const Recorder* const recorder = fiber.cluster->recorder.get();
    if (!recorder) return;
    Posts* const posts = fiber.cluster->launch.posts;
    // record() advances the time by one step first.
    const uint32_t sequence = posts ? posts->add(word, epoch, recorder->time() + 1) : kNothing;
    record(
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
static void record_signal(Fiber& fiber, const uint32_t* word, const AwaitedSignal& awaited) {
    Recorder* const recorder = fiber.cluster->recorder.get();
    if (!recorder) return;
    const Posts* const posts = fiber.cluster->launch.posts;
    const auto address = reinterpret_cast<uintptr_t>(word);
    const auto* const post = posts ? posts->first_to_reach(address, awaited.epoch) : nullptr;
    if (post) recorder->come_after(post->time);
    record(
        fiber, {
                   .barrier = awaited.signal,
                   .phase = awaited.epoch,
                   .kind = EventKind::kSignalWaitEnd,
                   .other = static_cast<uint16_t>(awaited.rank),
                   .sequence = post ? post->sequence : kNothing,
               }
    );
}

void check_epoch_increases(Fiber& fiber, const AwaitedSignal& posted, uint32_t old) {
    if (PostedEpochs::is_reached(posted.epoch, old)) return;
    fail(fiber, {FaultKind::kEpochNotIncreased, posted.epoch, posted.signal, posted.rank, old});
}

static const char* name_of(PostedBy by) {
    return by == PostedBy::kPost ? "post()" : "post_reduce()";
}

void check_posted_alike(Fiber& fiber, const PostedSignal& posted, PostedBy earlier) {
    if (posted.by == earlier || posted.by == PostedBy::kOther || earlier == PostedBy::kOther) {
        return;
    }
    fail(
        fiber, {FaultKind::kPostedDifferently, name_of(posted.by), posted.signal, posted.rank,
                name_of(earlier)}
    );
}

void wait_for_epoch(Fiber& fiber, const uint32_t* word, const AwaitedSignal& awaited) {
    record(fiber, {.kind = EventKind::kWaitBegin});
    const auto address = reinterpret_cast<uintptr_t>(word);
    let_other_clusters_run(fiber, address, false);
    SyncOrder* const order = fiber.cluster->launch.order;
    while (true) {
        if (order) order->hold(fiber);
        reach_atomically(fiber, address, sizeof(*word), false, Scope::kSystem);
        const uint32_t seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        if (PostedEpochs::is_reached(seen, awaited.epoch)) {
            if (order) order->note_wait(fiber, address, awaited.epoch);
            Detector* const detector = fiber.cluster->detector.get();
            if (detector) detector->acquire_epoch(fiber.number, address, seen, awaited.epoch);
            return record_signal(fiber, word, awaited);
        }
        spin(
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
