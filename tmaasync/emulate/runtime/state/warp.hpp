// The state of a warp, and of its lanes that execute one instruction together.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "abi.hpp"

namespace tmaasync_emulate {

struct Fiber;

// Lanes of a warp that execute one instruction together.
struct Meeting {
    const char* instruction = nullptr;
    uint32_t mask = 0;
    uint32_t arrived = 0;
    void (*act)(Meeting&) = nullptr;
    std::array<void*, 32> operands{};
    std::array<Fiber*, 32> fibers{};
};

struct Warp {
    uint32_t live_lanes = 0;
    char role[kRoleBytes]{};  // empty if the kernel names none
    std::vector<Meeting> meetings;
};

}  // namespace tmaasync_emulate
