// The writes that atomic operations publish.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "races/view.hpp"

namespace tmaasync_emulate {

// The writes that atomic operations on one address publish.
struct AtomicPlace {
    std::map<uint32_t, View> within;  // published to threads of the same cluster, by its index
    ClusterClocks seen;               // published to threads of any cluster
    ClusterClocks published;
};

// The last atomic operations of a thread. Its next access to the same bytes happens after the
// earlier operations of others: a block that took the last ticket may reset the counter.
class LastAtomics {
public:
    void note(uintptr_t cell, uint32_t order) { done_[next_++ % kKept] = {cell, order}; }

    bool is_after(uintptr_t cell, uint32_t order) const {
        return std::any_of(done_.begin(), done_.end(), [&](const Done& done) {
            return done.cell == cell && done.order > order;
        });
    }

private:
    static constexpr std::size_t kKept = 4;
    struct Done {
        uintptr_t cell = 0;
        uint32_t order = 0;
    };
    std::array<Done, kKept> done_{};
    std::size_t next_ = 0;
};

}  // namespace tmaasync_emulate
