// The latest ordinary reads of each thread, by their instruction.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tmaasync_emulate {

// Triton lets every thread of a block load a scalar, and one thread store the new value, without a
// barrier. The thread that stores has executed the load too, and mostly it alone uses the value.
class ReplicatedLoads {
public:
    // Prepares for the next cluster.
    void reset(uint32_t threads) {
        threads_ = threads;
        latest_.assign(std::size_t{threads} * kept_, {});
    }

    void note(uint32_t thread, uintptr_t site, uintptr_t cell) {
        while (is_taken(thread, site) && kept_ < kMost) grow();
        at(thread, site) = {site, cell};
    }

    // True if the instruction was the thread's too, on the same cell.
    bool holds(uint32_t thread, uintptr_t site, uintptr_t cell) {
        const Load& load = at(thread, site);
        return load.site == site && load.cell == cell;
    }

    // Calls act(instruction) for each latest load of the thread that reads the cell.
    template <class Act>
    void for_each_of(uint32_t thread, uintptr_t cell, Act act) const {
        for (std::size_t i = 0; i < kept_; ++i) {
            const Load& load = latest_[thread * kept_ + i];
            if (load.site && load.cell == cell) act(load.site);
        }
    }

private:
    struct Load {
        uintptr_t site;
        uintptr_t cell;
    };
    static constexpr std::size_t kMost = 512;  // of a thread; beyond them a load replaces another

    bool is_taken(uint32_t thread, uintptr_t site) {
        const uintptr_t held = at(thread, site).site;
        return held && held != site;
    }

    Load& at(uint32_t thread, uintptr_t site) { return latest_[thread * kept_ + site / 4 % kept_]; }

    void grow() {
        const std::vector<Load> before = std::move(latest_);
        const std::size_t kept = kept_;
        kept_ *= 2;
        latest_.assign(std::size_t{threads_} * kept_, {});
        for (std::size_t i = 0; i < before.size(); ++i) {
            if (before[i].site) at(static_cast<uint32_t>(i / kept), before[i].site) = before[i];
        }
    }

    uint32_t threads_ = 0;
    std::size_t kept_ = 8;      // of each thread, a power of two
    std::vector<Load> latest_;  // of thread after thread
};

}  // namespace tmaasync_emulate
