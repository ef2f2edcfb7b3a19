// Ordinary reads that may begin a loop over atomicCAS().
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "races/race.hpp"

namespace tmaasync_emulate {

// Instructions that read a cell before a compare-and-swap of it by the same thread, with the cell.
using FirstReadSites = std::set<std::pair<uintptr_t, uintptr_t>>;

// CUDA C++ Programming Guide, "Atomic Functions": a loop over atomicCAS() begins with an ordinary
// read. A read that races with atomic operations counts when its thread ends, unless the thread
// compares and swaps these bytes before, or its instruction is one of another thread's that does:
// a loop for a maximum ends without a swap where the value that it read is greater.
class FirstReads {
public:
    // Returns the read of a race between an ordinary read and a thread's atomic operation.
    static const Access* of(const Race& race);

    // Prepares for the next cluster.
    void reset(uint32_t threads) {
        kept_.clear();
        has_ended_.assign(threads, false);
    }

    // Keeps the race of a thread's read of a cell. False if the thread has ended.
    bool keep(uint32_t thread, uintptr_t cell, const Race& race);

    // Called when the thread compares and swaps bytes of the cell.
    void forget(uint32_t thread, uintptr_t cell);

    // Called at the thread's end. Returns the first race that is still kept, of other instructions.
    std::optional<Race> end(uint32_t thread, const FirstReadSites& sites);

private:
    struct Kept {
        uint32_t thread;
        uintptr_t cell;
        Race race;
    };
    std::vector<Kept> kept_;
    std::vector<bool> has_ended_;  // indexed by thread
};

}  // namespace tmaasync_emulate
