// The latest ordinary reads of each thread, by their instruction.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tmaasync_emulate {

// Triton lets every thread of a block load a scalar, and one thread store the new value, without a
// barrier. The thread that stores has executed the load too, and mostly it alone uses the value.
class ReplicatedLoads {
public:
    // Prepares for the next cluster.
    void reset(uint32_t threads) { latest_.assign(threads, {}); }

    void note(uint32_t thread, uintptr_t site, uintptr_t cell) { at(thread, site) = {site, cell}; }

    // True if the instruction was the thread's too, on the same cell.
    bool holds(uint32_t thread, uintptr_t site, uintptr_t cell) {
        const Load& load = at(thread, site);
        return load.site == site && load.cell == cell;
    }

private:
    struct Load {
        uintptr_t site;
        uintptr_t cell;
    };
    static constexpr std::size_t kKept = 8;

    Load& at(uint32_t thread, uintptr_t site) { return latest_[thread][site / 4 % kKept]; }

    std::vector<std::array<Load, kKept>> latest_;  // indexed by thread
};

}  // namespace tmaasync_emulate
