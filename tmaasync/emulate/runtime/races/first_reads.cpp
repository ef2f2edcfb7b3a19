#include "races/first_reads.hpp"

#include <algorithm>

#include "races/detector.hpp"

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

std::optional<Race> FirstReads::end(uint32_t thread, const FirstReadSites& sites) {
    has_ended_[thread] = true;
    const auto found = std::ranges::find_if(kept_, [&](const Kept& kept) {
        return kept.thread == thread && !sites.contains({of(kept.race)->site, kept.cell});
    });
    return found == kept_.end() ? std::nullopt : std::optional(found->race);
}

void Detector::exchange(uint32_t thread, uintptr_t address, uint32_t bytes) {
    for_each_cell(address, bytes, [&](uintptr_t start, uint8_t) {
        first_reads_.forget(thread, start);
        const auto note = [&](uintptr_t site) { grid_.first_reads.insert({site, start}); };
        replicated_loads_.for_each_of(thread, start, note);
        const uintptr_t place = start - windows_, rank = place / kWindowStride;
        if (rank >= shadows_.size()) return;
        const Cell& cell = shadows_[rank].at(static_cast<uint32_t>(place % kWindowStride));
        cell.for_each([&](const Access& access) {
            const bool is_own = access.cluster == cluster_ && access.agent == thread;
            if (is_own && access.operation == Operation::kRead) note(access.site);
        });
    });
}

bool Detector::keeps_first_read(const Race& race) {
    const Access* const read = FirstReads::of(race);
    if (!read) return false;
    if (grid_.first_reads.contains({read->site, address_of(race.place)})) return true;
    const auto found = grid_.detectors.find(read->cluster);
    return found != grid_.detectors.end() &&
           found->second->first_reads_.keep(read->thread, address_of(race.place), race);
}

}  // namespace tmaasync_emulate
