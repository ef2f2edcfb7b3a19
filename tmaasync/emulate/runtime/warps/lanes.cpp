#include "warps/lanes.hpp"

#include "schedule/faults.hpp"
#include "state/names.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

uint32_t launched_lanes(const Fiber& fiber) {
    const uint32_t threads = fiber.cluster->launch.threads() - fiber.index / 32 * 32;
    return threads < 32 ? (1u << threads) - 1 : kAllLanes;
}

// PTX ISA: undefined unless all live lanes that a mask names execute the instruction with that
// mask. Reports lanes that executed it with another mask before they ended.
static void check_masks_agree(const Meeting& meeting, Fiber& fiber) {
    const uint32_t ended = meeting.mask & launched_lanes(fiber) & ~meeting.arrived;
    uint32_t others = 0, mask = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        const Fiber& other = lane_of_warp(fiber, lane);
        if (!(ended >> lane & 1) || other.in_warp.met_at != fiber.in_warp.met_at) continue;
        if (other.in_warp.met_mask == meeting.mask || (mask && other.in_warp.met_mask != mask))
            continue;
        mask = other.in_warp.met_mask;
        others |= 1u << lane;
    }
    if (!others) return;
    report_fault(
        fiber, {FaultKind::kMasksDiffer, lanes_of(meeting.arrived), fiber.index / 32,
                meeting.instruction, hexadecimal(meeting.mask), lanes_of(others), hexadecimal(mask)}
    );
}

void hold_if_complete(Cluster& cluster, Warp& warp, Meeting& meeting, Fiber* arriving) {
    if (meeting.arrived == 0 || meeting.arrived != (meeting.mask & warp.live_lanes)) return;
    check_masks_agree(meeting, *meeting.fibers[__builtin_ctz(meeting.arrived)]);
    if (SyncOrder* order = cluster.launch.order) order->join_lanes(meeting);
    meeting.act(meeting);
    for (uint32_t lane = 0; lane < 32; ++lane) {
        Fiber* fiber = meeting.fibers[lane];
        if ((meeting.arrived >> lane & 1) && fiber != arriving) wake(fiber);
    }
    meeting.arrived = 0;
    meeting.instruction = nullptr;
}

static Meeting& meeting_for(Warp& warp, uint32_t mask) {
    Meeting* free = nullptr;
    for (Meeting& meeting : warp.meetings) {
        if (meeting.arrived && meeting.mask == mask) return meeting;
        if (!meeting.arrived) free = &meeting;
    }
    if (!free) {
        // Lanes that wait hold no reference, so the vector may move.
        warp.meetings.emplace_back();
        free = &warp.meetings.back();
    }
    free->mask = mask;
    return *free;
}

void meet(const char* instruction, uint32_t mask, void (*act)(Meeting&), void* operands) {
    Fiber& fiber = current_fiber();
    if (!(mask >> fiber.lane & 1)) {
        fail(
            fiber,
            {FaultKind::kMaskOfOthers, fiber.lane, fiber.index / 32, instruction, hexadecimal(mask)}
        );
    }
    Meeting& meeting = meeting_for(*fiber.warp, mask);
    if (meeting.arrived && std::strcmp(meeting.instruction, instruction) != 0) {
        const Fiber& first = *meeting.fibers[__builtin_ctz(meeting.arrived)];
        fail(
            fiber,
            {FaultKind::kLanesApart, meeting.instruction, lanes_of(meeting.arrived),
             line_of(fiber, first.in_warp.met_at), instruction, fiber.lane, hexadecimal(mask)}
        );
    }
    fiber.in_warp.met_at = fiber.site;
    fiber.in_warp.met_mask = mask;
    meeting.instruction = instruction;
    meeting.act = act;
    meeting.arrived |= 1u << fiber.lane;
    meeting.operands[fiber.lane] = operands;
    meeting.fibers[fiber.lane] = &fiber;
    hold_if_complete(*fiber.cluster, *fiber.warp, meeting, &fiber);
    // A complete meeting has no arrivals left, so this lane waits only if it is still counted.
    if (meeting.instruction && (meeting.arrived >> fiber.lane & 1)) {
        block(fiber, {Wait::Kind::kWarp, instruction});
    }
}

void join_lanes(Meeting& meeting) {
    View all;
    Detector* detector = nullptr;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!(meeting.arrived >> lane & 1)) continue;
        detector = meeting.fibers[lane]->cluster->detector.get();
        if (!detector) return;
        detector->release(meeting.fibers[lane]->number, all);
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (meeting.arrived >> lane & 1) detector->acquire(meeting.fibers[lane]->number, all);
    }
}

// PTX ISA: elect.sync waits for every thread of its mask, and none of them may have ended.
static void elect_one_lane(Meeting& meeting) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(meeting.arrived));
    operands_of<bool>(meeting, lane) = true;
    const Fiber& elected = *meeting.fibers[lane];
    const uint32_t ended = launched_lanes(elected) & ~meeting.arrived;
    if (ended == 0 || is_pardoned(elected, FaultKind::kElectOfPart, elected.site)) return;
    report_fault(
        elected,
        {FaultKind::kElectOfPart, lanes_of(meeting.arrived), elected.index / 32, lanes_of(ended)}
    );
}

bool elect_lane() {
    bool elected = false;
    meet("elect.sync", kAllLanes, &elect_one_lane, &elected);
    return elected;
}

static bool waits_for_lanes(const Fiber& fiber, uint32_t lanes) {
    const Wait::Kind kind = fiber.wait.kind;
    if (kind == Wait::Kind::kWarp) return (fiber.in_warp.met_mask & lanes) != 0;
    return kind == Wait::Kind::kNamedBarrier || kind == Wait::Kind::kCluster;
}

bool reports_lone_lanes(Cluster& cluster, Fiber& fiber) {
    if (fiber.is_done || fiber.wait.kind != Wait::Kind::kWarp) return false;
    for (const Meeting& meeting : fiber.warp->meetings) {
        const uint32_t lone = meeting.arrived;
        if (!(lone >> fiber.lane & 1)) continue;
        const uint32_t missing = meeting.mask & fiber.warp->live_lanes & ~lone;
        for (uint32_t lane = 0; lane < 32; ++lane) {
            if (!(missing >> lane & 1)) continue;
            const Fiber& other = lane_of_warp(fiber, lane);
            if (!waits_for_lanes(other, lone)) continue;
            Reason mask;
            if (other.wait.kind == Wait::Kind::kWarp) {
                mask = {FaultKind::kWithMask, hexadecimal(other.in_warp.met_mask)};
            }
            report_fault(
                fiber, {FaultKind::kLanesMissing, lanes_of(lone), fiber.index / 32,
                        meeting.instruction, hexadecimal(meeting.mask), lanes_of(missing), lane,
                        other.wait.instruction, line_of(other, other.site), mask}
            );
            return true;
        }
    }
    return false;
}

}  // namespace tmaasync_emulate
