#include "warps/matrices.hpp"

#include "memory/accesses.hpp"
#include "memory/addresses.hpp"
#include "memory/unwritten.hpp"
#include "warps/lanes.hpp"

namespace tmaasync_emulate {

// Calls act(held, half, address) for both elements that a lane holds of every matrix. Lane l gives
// the address of row l % 8 of matrix l / 8.
template <typename Operands, typename Act>
void for_each_element(Meeting& meeting, Act act) {
    for (int matrix = 0; matrix < operands_of<Operands>(meeting, 0).matrices; ++matrix) {
        for (uint32_t lane = 0; lane < 32; ++lane) {
            auto& held = operands_of<Operands>(meeting, lane);
            for (uint32_t half = 0; half < 2; ++half) {
                uint32_t row = lane / 4, column = lane % 4 * 2 + half;
                if (held.is_transposed) std::swap(row, column);
                const auto owner = static_cast<uint32_t>(matrix) * 8 + row;
                const auto& target = operands_of<Operands>(meeting, owner);
                act(held.values[matrix], half, target.fiber->cta->window + target.row + column * 2);
            }
        }
    }
}

// The store of a lane to bytes that another lane has just stored to; null if it is the only one.
static Repeat* repeated_row(Meeting& meeting, uint32_t lane) {
    Repeat* const repeat = operands_of<StoreMatrix>(meeting, lane).fiber->races.repeat.get();
    return repeat && repeat->race.rule == Rule::kNone ? repeat : nullptr;
}

// The bytes of a row that two lanes of the instruction store are compared with each other, and not
// with the bytes before the instruction.
static void compare_rows(Meeting& meeting) {
    bool is_kept = true;
    for_each_element<StoreMatrix>(meeting, [&](uint32_t held, uint32_t half, const uint8_t* where) {
        const auto value = static_cast<uint16_t>(held >> 16 * half);
        is_kept &= std::memcmp(where, &value, sizeof(value)) == 0;
    });
    for (uint32_t lane = 0; lane < 32; ++lane) {
        Repeat* const repeat = repeated_row(meeting, lane);
        for (std::size_t i = 0; repeat && i < repeat->bytes; ++i) {
            repeat->held[i] = static_cast<uint8_t>(is_kept ? repeat->at[i] : ~repeat->at[i]);
        }
    }
}

static void store_matrices(Meeting& meeting) {
    for_each_element<StoreMatrix>(meeting, [](uint32_t held, uint32_t half, uint8_t* where) {
        const auto value = static_cast<uint16_t>(held >> 16 * half);
        std::memcpy(where, &value, sizeof(value));
    });
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (repeated_row(meeting, lane)) return compare_rows(meeting);
    }
}

static void load_matrices(Meeting& meeting) {
    for_each_element<LoadMatrix>(meeting, [](uint32_t& held, uint32_t half, const uint8_t* where) {
        uint16_t value;
        std::memcpy(&value, where, sizeof(value));
        held = half ? (held & 0xffff) | uint32_t{value} << 16 : value;
    });
}

// Checks the lane and the row that it names, then executes the instruction with the whole warp.
template <typename Operands>
void meet_for_matrices(Operands& mine, void (*act)(Meeting&)) {
    Fiber& fiber = current_fiber();
    mine.fiber = &fiber;
    if (fiber.warp->live_lanes != kAllLanes) {
        fail(fiber, {FaultKind::kMatrixOfPart, Operands::kName});
    }
    if (fiber.lane < static_cast<uint32_t>(mine.matrices) * 8) {
        mine.row = own_offset(fiber, mine.row);
        check_inside_shared(fiber, mine.row, 16, Operands::kName);
        if (mine.row % 16) fail(fiber, {FaultKind::kMatrixRow, Operands::kName, mine.row});
        if (fiber.cluster->detector) {
            const uint32_t rank = fiber.cta->rank;
            Operands::kWrites ? check_no_barrier(fiber, rank, mine.row, 16)
                              : check_is_written(fiber, rank, mine.row, 16);
            touch_shared(
                fiber, Operands::kOperation, fiber.cta->rank, mine.row, 16, Operands::kWrites
            );
        }
    }
    meet(Operands::kName, kAllLanes, act, &mine);
}

void store_matrices_of_lane(StoreMatrix& mine) {
    meet_for_matrices(mine, &store_matrices);
}

void load_matrices_of_lane(LoadMatrix& mine) {
    meet_for_matrices(mine, &load_matrices);
}

}  // namespace tmaasync_emulate
