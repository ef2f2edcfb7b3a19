// Lanes of a warp that execute one instruction together.
#pragma once

#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

constexpr uint32_t kAllLanes = 0xffffffff;

// The lanes that the warp was launched with.
uint32_t launched_lanes(const Fiber& fiber);

inline Fiber& lane_of_warp(Fiber& fiber, uint32_t lane) {
    return *(&fiber - fiber.lane + lane);
}

void hold_if_complete(Cluster& cluster, Warp& warp, Meeting& meeting, Fiber* arriving);

// Waits until every live lane of the mask is here. Then the last one acts for all. The operands
// stay where each lane put them.
void meet(const char* instruction, uint32_t mask, void (*act)(Meeting&), void* operands);

template <typename Operands>
Operands& operands_of(Meeting& meeting, uint32_t lane) {
    return *static_cast<Operands*>(meeting.operands[lane]);
}

// Orders each lane's accesses before the meeting before all lanes' accesses after it.
void join_lanes(Meeting& meeting);

bool elect_lane();

// Reports lanes that wait for others of their warp, which wait for the block, the cluster or them.
bool reports_lone_lanes(Cluster& cluster, Fiber& fiber);

}  // namespace tmaasync_emulate
