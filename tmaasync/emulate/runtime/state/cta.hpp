// The state of a CTA.
#pragma once

#include <vector_types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "state/barriers.hpp"
#include "state/fiber.hpp"
#include "state/tensor_unit.hpp"

namespace tmaasync_emulate {

// A griddepcontrol.wait that a thread has executed.
struct GridWait {
    uint32_t thread;
    Epoch epoch;
};

// Accesses of other CTAs' threads to a CTA's memory, for the race detector.
struct CtaRaces {
    std::vector<Access> remote;
    std::vector<Access> remote_arrivals;  // relaxed arrivals
};

struct Cta {
    uint3 block{};
    uint32_t rank = 0;
    uint32_t live = 0;
    bool has_static_shared = false;
    uint8_t* window = nullptr;
    std::vector<Warp> warps;
    std::vector<Warpgroup> warpgroups;
    std::array<NamedBarrier, 16> named{};
    std::array<uint32_t, 3> votes{};
    std::vector<Fiber*> register_waiters;
    std::vector<GridWait> grid_waits;
    std::vector<int32_t> barrier_at;  // indexed by shared offset / 8; -1 without a barrier
    std::deque<Mbarrier> barriers;
    CtaRaces races;
    TensorUnit tensor;
};

}  // namespace tmaasync_emulate
