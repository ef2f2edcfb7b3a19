// The phases of a barrier in a verified launch, and the events that decide them.
#pragma once

#include <cstdint>
#include <vector>

#include "state/synced.hpp"

namespace tmaasync_emulate {

// A barrier, by its CTA's number in the grid.
struct BarrierKey {
    uint64_t cta;
    uint32_t offset;  // or kNamed and a number

    bool operator<(const BarrierKey& other) const {
        return cta != other.cta ? cta < other.cta : offset < other.offset;
    }
};

struct Phases {
    Agent agent = kNoAgent;                    // its epochs count completed phases
    Epoch completed = 0;                       // number of these
    std::vector<SyncEvent> arrived;            // in this phase, landings of its loads included
    std::vector<SyncEvent> arrived_before[2];  // in the last phase, and in the one before it
    std::vector<SyncEvent> expected;           // expectations of bytes without an arrival
    std::vector<SyncEvent> passed;             // waits for the last phase
    Clock gathered;                            // published by this phase's arrivals and landings
    Clock joined;                              // the last of these: lanes of a warp often share one
    Clock arrivals;   // published by arrivals after an expectation, landings left out
    Clock published;  // by the last phase
};

}  // namespace tmaasync_emulate
