#include "verify/places.hpp"

#include "policy/random.hpp"

namespace tmaasync_emulate {

uint64_t hash_of(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t hash = 0;
    for (const uint64_t word : {a, b, c, d}) hash = mixed(hash * 0x9e3779b97f4a7c15 + word + 1);
    return hash;
}

Events SyncVersion::all() const {
    Events events = writes;
    events.insert(events.end(), reads.begin(), reads.end());
    return events;
}

void SyncVersion::begin(const Touch& touch) {
    reduction = touch.reduction;
    value = touch.value;
    sum = least = reduction.count.addend;
}

// In another order of the writes a counter has, before one of them, any value from the first to the
// last one without the least addend. What a thread learns grows with it.
bool SyncVersion::join(const Touch& touch) {
    const bool is_alike = touch.reduces() && reduction.operation == touch.reduction.operation;
    if (!is_alike || !reads.empty()) return false;
    if (!touch.counts()) return true;
    const Count& count = touch.reduction.count;
    const bool learns_alike =
        reduction.count.divisor == count.divisor && reduction.count.limit == count.limit;
    if (!learns_alike || touch.value != value + sum) return false;
    const uint64_t smallest = std::min(least, count.addend);
    const uint64_t last = touch.value + (count.addend - smallest);
    if (last < touch.value || count.seen(value) != count.seen(last)) return false;
    sum += count.addend;
    least = smallest;
    return true;
}

void SyncPlace::begin_version(const Touch& touch) {
    const uint64_t number = now.number + 1;
    earlier = std::exchange(before, std::exchange(now, {}));
    now.number = number;
    now.begin(touch);
    written = {};
}

uint64_t SyncPlace::swap(
    const SyncVersion& version,
    const SyncEvent& first,
    bool first_writes,
    const SyncEvent& second,
    bool second_writes
) const {
    const uint64_t at = version.number;
    if (at != now.number || version.writes.size() > 1) return 0;
    const auto change = [this](const SyncEvent& event, bool writes, uint64_t from, uint64_t to) {
        return part_of_signature(to, event, writes) - part_of_signature(from, event, writes);
    };
    if (!first_writes) return change(first, false, at, at + 1);
    if (!second_writes) return change(second, false, at, at - 1);
    if (!version.reads.empty()) return 0;
    return change(first, true, at, at + 1) + change(second, true, at + 1, at);
}

}  // namespace tmaasync_emulate
