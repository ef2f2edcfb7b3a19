#include "warps/active_lanes.hpp"

#include "schedule/scheduler.hpp"
#include "warps/lanes.hpp"

namespace tmaasync_emulate {

// The lanes of the warp that wait for the result of this call of __activemask().
static uint32_t lanes_at_active_site(Fiber& fiber) {
    uint32_t lanes = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!(fiber.warp->live_lanes >> lane & 1)) continue;
        const Fiber& other = lane_of_warp(fiber, lane);
        if (other.in_warp.active_site == fiber.in_warp.active_site && !other.in_warp.active_lanes)
            lanes |= 1u << lane;
    }
    return lanes;
}

// True if another lane of the warp can run and has not come here yet. A lane that waits in a later
// call of __activemask() does not come: it waits for this lane, as lanes do after a branch.
static bool may_be_joined(Fiber& fiber) {
    const uint32_t others = fiber.warp->live_lanes & ~lanes_at_active_site(fiber);
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!(others >> lane & 1)) continue;
        const Fiber& other = lane_of_warp(fiber, lane);
        const bool is_later_here = other.in_warp.active_site <= fiber.in_warp.active_site;
        if (other.wait.kind == Wait::Kind::kNone && is_later_here) return true;
    }
    return false;
}

uint32_t find_active_lanes(Fiber& fiber) {
    // Turns of the other lanes, which may be in a loop that waits for this lane.
    constexpr int kTurns = 64;
    fiber.in_warp.active_site = fiber.site;
    for (int turn = 0; turn < kTurns && !fiber.in_warp.active_lanes && may_be_joined(fiber);
         ++turn) {
        yield(fiber);
    }
    if (!fiber.in_warp.active_lanes) {
        const uint32_t lanes = lanes_at_active_site(fiber);
        for (uint32_t lane = 0; lane < 32; ++lane) {
            if (lanes >> lane & 1) lane_of_warp(fiber, lane).in_warp.active_lanes = lanes;
        }
    }
    fiber.in_warp.active_site = 0;
    return std::exchange(fiber.in_warp.active_lanes, 0);
}

}  // namespace tmaasync_emulate
