#include "verify/places.hpp"

namespace tmaasync_emulate {

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

}  // namespace tmaasync_emulate
