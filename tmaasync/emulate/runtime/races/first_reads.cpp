#include "races/first_reads.hpp"

#include <algorithm>

namespace tmaasync_emulate {

const Access* FirstReads::of(const Race& race) {
    const auto is_read = [](const Access& access) { return access.operation == Operation::kRead; };
    const Access& read = is_read(race.first) ? race.first : race.second;
    const Access& other = is_read(race.first) ? race.second : race.first;
    // Not a red.async, whose agent is an mbarrier's.
    const bool is_of_thread = !other.is_async && other.agent == other.thread;
    return is_read(read) && other.is_atomic() && is_of_thread ? &read : nullptr;
}

bool FirstReads::keep(uint32_t thread, uintptr_t cell, const Race& race) {
    if (has_ended_[thread]) return false;
    const bool is_kept = std::ranges::any_of(kept_, [&](const Kept& kept) {
        return kept.thread == thread && kept.cell == cell;
    });
    if (!is_kept) kept_.push_back({thread, cell, race});
    return true;
}

void FirstReads::forget(uint32_t thread, uintptr_t cell) {
    std::erase_if(kept_, [&](const Kept& kept) {
        return kept.thread == thread && kept.cell == cell;
    });
}

std::optional<Race> FirstReads::end(uint32_t thread) {
    has_ended_[thread] = true;
    const auto found = std::ranges::find(kept_, thread, &Kept::thread);
    return found == kept_.end() ? std::nullopt : std::optional(found->race);
}

}  // namespace tmaasync_emulate
