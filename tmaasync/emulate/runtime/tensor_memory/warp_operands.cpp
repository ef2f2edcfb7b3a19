#include "tensor_memory/warp_operands.hpp"

namespace tmaasync_emulate {

void check_whole_warp(Fiber& fiber, const char* instruction) {
    if (fiber.warp->live_lanes == kAllLanes) return;
    fail(fiber, {FaultKind::kMatrixOfPart, instruction});
}

void meet_whole_warp(const char* instruction, void (*act)(Meeting&), void* operands) {
    Fiber& fiber = current_fiber();
    check_whole_warp(fiber, instruction);
    meet(instruction, kAllLanes, act, operands);
    if (fiber.cluster->has_failed()) fail(fiber, {});
    if (fiber.cluster->detector) stop_if_race(fiber);
}

}  // namespace tmaasync_emulate
