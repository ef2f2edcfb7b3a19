// Operands of instructions that a whole warp executes, which all lanes give alike.
#pragma once

#include <cstdint>

#include "schedule/faults.hpp"
#include "warps/lanes.hpp"

namespace tmaasync_emulate {

struct WarpOperands {
    const char* instruction;
    uint32_t group = 1;
    uint32_t address = 0;  // in tensor memory; of an alloc in shared memory
    uint32_t columns = 0;
    Fiber* fiber = nullptr;
    bool is_done = false;
    uint64_t changes = 0;     // of the CTA's allocations, when the lanes met
    uint64_t sm_changes = 0;  // of all CTAs', where they share SMs
};

inline uint32_t warp_of(const Fiber& fiber) {
    return fiber.index / 32;
}

inline uint32_t first_of_warp(const Fiber& fiber) {
    return fiber.number - fiber.lane;
}

// Called by every lane: fails in a warp that is not whole.
void check_whole_warp(Fiber& fiber, const char* instruction);

// Called by the last lane that comes: reports lanes whose operands differ. True if they agree.
template <typename Operands>
bool lanes_agree(Meeting& meeting, const char* what) {
    const auto& first = operands_of<Operands>(meeting, 0);
    for (uint32_t lane = 1; lane < 32; ++lane) {
        const auto& other = operands_of<Operands>(meeting, lane);
        if (first.address == other.address && first.columns == other.columns) continue;
        const bool is_address = first.address != other.address;
        report_fault(
            *first.fiber, {FaultKind::kTcgen05LanesDiffer, warp_of(*first.fiber), what, lane,
                           is_address ? FaultKind::kTensorAddress : FaultKind::kTensorColumnCount,
                           hexadecimal(is_address ? other.address : other.columns),
                           hexadecimal(is_address ? first.address : first.columns)}
        );
        return false;
    }
    return true;
}

// Executes an instruction with the whole warp. `act` runs in the last lane that comes.
void meet_whole_warp(const char* instruction, void (*act)(Meeting&), void* operands);

}  // namespace tmaasync_emulate
