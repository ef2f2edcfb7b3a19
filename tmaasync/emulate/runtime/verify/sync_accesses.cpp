// The accesses at which threads of a verified launch synchronise.

#include <algorithm>
#include <cstring>

#include "schedule/scheduler.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

Commuting SyncOrder::reduction_of(const Fiber& fiber, const AtomicForm& form) const {
    if (form.count.addend) return {form.operation, form.count};
    if (form.old == OldValue::kNotReturned) return {form.operation};
    const uint64_t* const end = given_.reduction + given_.reductions;
    const bool is_unused = std::find(given_.reduction, end, call_of(fiber)) != end;
    return {is_unused ? form.operation : 0};
}

static uint64_t value_at(uintptr_t address, uint64_t bytes) {
    return bytes == 8
               ? __atomic_load_n(reinterpret_cast<const uint64_t*>(address), __ATOMIC_RELAXED)
               : __atomic_load_n(reinterpret_cast<const uint32_t*>(address), __ATOMIC_RELAXED);
}

// A poll that its thread repeats at once is one operation: the last one.
void SyncOrder::access(
    Fiber& fiber,
    uintptr_t address,
    uint64_t bytes,
    SyncAccess access,
    const Commuting& reduction,
    const void* expected
) {
    const uint64_t thread = thread_of(fiber);
    LastAccess& last = last_accesses_[thread];
    const bool repeats = last.is_poll && last.address == address && last.site == fiber.site &&
                         last.number == counts_[thread];
    if (repeats) {
        --counts_[thread];
        --given_.operations;
        given_.signature -= last.signature;
    }
    hold(fiber);
    if (expected && std::memcmp(reinterpret_cast<const void*>(address), expected, bytes) != 0) {
        access = SyncAccess::kRead;
    }
    const Synced now = count(fiber);
    const uint64_t polled = last.version, before = given_.signature;
    last = {address, fiber.site, now.event.number, 0, access == SyncAccess::kRead};
    const bool counts = reduction.count.addend != 0;
    const Touch touch{access, reduction, counts ? value_at(address, bytes) : 0};
    for (uintptr_t word = address / kWordBytes * kWordBytes; word < address + bytes;
         word += kWordBytes) {
        const uint64_t version = reach(fiber, word, now, touch, repeats ? &polled : nullptr);
        last.version = bytes <= kWordBytes ? version : SIZE_MAX;
    }
    last.signature = given_.signature - before;
}

void SyncOrder::forget_poll(SyncPlace& place, const SyncEvent& poll) {
    for (SyncVersion* version : {&place.now, &place.before, &place.earlier}) {
        std::erase_if(version->reads, [&](const auto& one) { return is_same(one, poll); });
    }
    if (pairs_.size() == kMostPairs) return;  // a full list says that pairs are missing
    bool is_pair_gone = false;
    std::erase_if(pairs_, [&](const UnorderedPair& one) {
        if (one.kind != Unordered::kContext) {
            is_pair_gone = one.kind == Unordered::kAccess && is_same(one.first, poll);
        }
        return is_pair_gone;
    });
}

void SyncOrder::compare(
    const SyncPlace& place,
    const SyncVersion& version,
    bool are_writes,
    const Events& context,
    const Synced& now,
    const Touch& touch
) {
    for (const SyncEvent& one : are_writes ? version.writes : version.reads) {
        if (is_before(one, now)) continue;
        const uint64_t swap = place.swap(version, one, are_writes, now.event, touch.writes());
        add_pair({Unordered::kAccess, kNothing, place.window, place.word, one, now.event, swap}, 0);
        for (const SyncEvent& before : context) {
            add_pair(
                {Unordered::kContext, kNothing, place.window, place.word, before, now.event}, 0
            );
        }
    }
}

// Reads do not depend on each other, nor reductions with one operation.
void SyncOrder::compare_with(
    const SyncPlace& place,
    const SyncVersion& version,
    const SyncVersion& before,
    const Synced& now,
    const Touch& touch
) {
    const bool commutes = touch.reduces() && !touch.counts() &&
                          version.reduction.operation == touch.reduction.operation;
    if (!commutes) compare(place, version, true, before.all(), now, touch);
    if (touch.writes()) compare(place, version, false, version.writes, now, touch);
}

uint64_t SyncOrder::reach(
    const Fiber& fiber,
    uintptr_t word,
    const Synced& now,
    const Touch& touch,
    const uint64_t* polled
) {
    const Cluster& cluster = *fiber.cluster;
    const bool is_shared = word - cluster.windows() < cluster.windows_bytes();
    // Clusters that run one after the other have the same addresses of shared memory.
    const uint64_t window = is_shared ? cluster.index + 1 : 0;
    SyncPlace& place = places_[{window, word}];
    place.window = window;
    place.word = word;
    if (polled && *polled != place.now.number) forget_poll(place, now.event);
    if (touch.writes() && touch.access != SyncAccess::kPost) {
        for (const SyncEvent& wait : place.waits) place.now.reads.push_back(wait);
        place.waits.clear();
        place.posts.clear();
    }
    const bool joins = place.now.join(touch);
    if (joins) {
        compare_with(place, place.before, place.earlier, now, touch);
    } else if (!polled || touch.writes() || !place.now.is_known_to_poll(*polled)) {
        compare_with(place, place.now, place.before, now, touch);
    }
    if (touch.reads()) known_[thread_of(fiber)].join(place.written);
    if (touch.writes() && !joins) place.begin_version(touch);
    given_.signature += place.part_of_signature(place.now.number, now.event, touch.writes());
    if (touch.writes()) {
        place.now.writes.push_back(now.event);
        join(place.written, now);
        return place.now.number;
    }
    std::erase_if(place.now.reads, [&](const auto& one) { return is_same(one, now.event); });
    place.now.reads.push_back(now.event);
    return place.now.number;
}

void SyncOrder::note_post(uintptr_t word, uint32_t epoch) {
    SyncPlace& place = places_[{0, word}];
    place.posts.push_back({epoch, place.written});
}

void SyncOrder::note_wait(Fiber& fiber, uintptr_t word, uint32_t epoch) {
    const Synced now = count(fiber);
    SyncPlace& place = places_[{0, word}];
    const auto post =
        std::find_if(place.posts.begin(), place.posts.end(), [&](const SyncPost& one) {
            return PostedEpochs::is_reached(one.epoch, epoch);
        });
    const bool is_posted = post != place.posts.end();
    const bool was_reached = place.now.writes.empty();
    if (!is_posted && !was_reached) {
        reach(fiber, word, now, {SyncAccess::kRead, {}, 0});
        return;
    }
    if (is_posted) learn(fiber, post->published);
    place.waits.push_back(now.event);
    const auto number = static_cast<uint64_t>(post - place.posts.begin());
    sign(word, ~number, now.event.owner, now.event.number);
}

// Threads take clusters that have not started in some order.
bool SyncOrder::refuses(Fiber& fiber) {
    constexpr uintptr_t kUnstarted = 0;
    access(fiber, kUnstarted, kWordBytes, SyncAccess::kReadAndWrite);
    const SyncEvent request = event_of(fiber, counts_[thread_of(fiber)]);
    const SyncEvent* const end = given_.refusal + given_.refusals;
    const bool is_refused = std::any_of(given_.refusal, end, [&](const SyncEvent& one) {
        return is_same(one, request);
    });
    sign(~uint64_t{0}, is_refused, request.owner, request.number);
    return is_refused;
}

// Another run refuses the thread's last request.
void SyncOrder::note_grant(Fiber& fiber) {
    const SyncEvent request = event_of(fiber, counts_[thread_of(fiber)]);
    add_pair({Unordered::kRefusal, kNothing, 0, 0, request, request}, request.number);
}

}  // namespace tmaasync_emulate
