// Tensor memory of SMs that run CTAs of several clusters: which of them holds which columns.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "shared_memory/tensor_memory.hpp"

namespace tmaasync_emulate {

// Columns of an SM that a CTA holds. Until it relinquishes its permit, no other CTA of the SM
// allocates.
struct HeldColumns {
    uint64_t cta;  // its number in the grid
    uint32_t start;
    uint32_t columns;
    bool has_permit = true;
};

// The SMs of a launch with more CTAs than SMs. Clusters go to the SMs with the fewest, as on an
// idle chip. Clusters that several host threads run share it.
class SmColumns {
public:
    SmColumns(uint32_t sms, uint32_t ctas)
        : ctas_(ctas), clusters_(std::max(1u, sms / ctas)), held_(clusters_.size() * ctas) {}

    // Takes a place for a cluster; returns the SM of its first CTA.
    uint32_t enter() {
        const std::lock_guard guard(lock_);
        const auto least = std::min_element(clusters_.begin(), clusters_.end());
        ++*least;
        return static_cast<uint32_t>(least - clusters_.begin()) * ctas_;
    }

    void leave(uint32_t first_sm) {
        const std::lock_guard guard(lock_);
        --clusters_[first_sm / ctas_];
        ++changes_;
    }

    // Takes columns that are free on the SM of each of these CTAs, of one or two; kTensorColumns if
    // there are none, or another CTA has the permit.
    uint32_t take(uint32_t columns, const std::vector<std::pair<uint32_t, uint64_t>>& ctas) {
        const std::lock_guard guard(lock_);
        for (uint32_t start = 0; start + columns <= kTensorColumns; start += columns) {
            const bool is_free = std::all_of(ctas.begin(), ctas.end(), [&](const auto& one) {
                return is_free_for(one.first, one.second, start, columns);
            });
            if (!is_free) continue;
            for (const auto& [sm, cta] : ctas) held_[sm].push_back({cta, start, columns});
            return start;
        }
        return kTensorColumns;
    }

    void free(uint32_t sm, uint64_t cta, uint32_t start) {
        const std::lock_guard guard(lock_);
        std::erase_if(held_[sm], [&](const HeldColumns& one) {
            return one.cta == cta && one.start == start;
        });
        ++changes_;
    }

    void relinquish(uint32_t sm, uint64_t cta) {
        const std::lock_guard guard(lock_);
        for (HeldColumns& one : held_[sm]) {
            if (one.cta == cta) one.has_permit = false;
        }
        ++changes_;
    }

    // Columns that another CTA of the SM holds, of one with the permit if there is one.
    std::optional<HeldColumns> held_by_another(uint32_t sm, uint64_t cta) {
        const std::lock_guard guard(lock_);
        std::optional<HeldColumns> found;
        for (const HeldColumns& one : held_[sm]) {
            if (one.cta != cta && (!found || one.has_permit)) found = one;
        }
        return found;
    }

    // Counts the times when columns may have become free.
    uint64_t changes() const { return changes_.load(); }

private:
    bool is_free_for(uint32_t sm, uint64_t cta, uint32_t start, uint32_t columns) const {
        return std::none_of(held_[sm].begin(), held_[sm].end(), [&](const HeldColumns& one) {
            const bool overlaps = one.start < start + columns && start < one.start + one.columns;
            return overlaps || (one.cta != cta && one.has_permit);
        });
    }

    const uint32_t ctas_;
    std::mutex lock_;
    std::vector<uint32_t> clusters_;  // on each group of SMs that one cluster takes
    std::vector<std::vector<HeldColumns>> held_;
    std::atomic<uint64_t> changes_{0};
};

}  // namespace tmaasync_emulate
