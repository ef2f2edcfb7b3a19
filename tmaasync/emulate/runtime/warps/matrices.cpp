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

// Calls act(register, shift of the byte, owner of its row, element of the row) for all bytes of the
// fragments. CUTLASS, copy_traits_sm100.
template <typename Operands, typename Act>
void for_each_byte(Meeting& meeting, Act act) {
    const auto& first = operands_of<Operands>(meeting, 0);
    const bool is_transposed = first.has_transposed_bytes();
    const uint32_t registers = static_cast<uint32_t>(first.matrices * first.rows()) / 8;
    const uint32_t rows = first.rows() == 16 ? 4 : 2;  // of a lane of a quad
    for (uint32_t lane = 0; lane < 32; ++lane) {
        auto& mine = operands_of<Operands>(meeting, lane);
        for (uint32_t i = 0; i < 4 * registers; ++i) {
            const uint32_t at = i / 4, byte = i % 4;
            uint32_t row = at * 8 + lane / 4, element = lane % 4 * 4 + byte;
            if (is_transposed) {
                const uint32_t part = rows == 4 ? at % 2 * 2 : 0;
                row = at * 2 / rows * first.rows() + lane % 4 * rows + part + byte % 2;
                element = lane / 4 + byte / 2 * 8;
            }
            act(mine.values[at], byte * 8, operands_of<Operands>(meeting, row), element);
        }
    }
}

static void load_bytes(Meeting& meeting) {
    for_each_byte<LoadMatrix>(
        meeting, [](uint32_t& held, uint32_t shift, const LoadMatrix& owner, uint32_t element) {
            const uint32_t bits = owner.element_bits();
            const uint32_t bit = element * bits;
            const uint8_t* const from = owner.fiber->cta->window + owner.row + bit / 8;
            const uint32_t more = bit % 8 + bits > 8 ? uint32_t{from[1]} << 8 : 0;
            const uint32_t value = (from[0] | more) >> bit % 8 & ((1u << bits) - 1);
            held = (held & ~(0xffu << shift)) | value << shift;
        }
    );
}

// The store of a lane to bytes that another lane has just stored to; null if it is the only one.
static Repeat* repeated_row(Meeting& meeting, uint32_t lane) {
    Repeat* const repeat = operands_of<StoreMatrix>(meeting, lane).fiber->races.repeat.get();
    return repeat && repeat->race.rule == Rule::kNone ? repeat : nullptr;
}

// The bytes of a row that two lanes of the instruction store are compared with each other, and not
// with the bytes before the instruction. `is_kept`: no lane's bytes were overwritten by others.
static void note_rows(Meeting& meeting, bool is_kept) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        Repeat* const repeat = repeated_row(meeting, lane);
        for (std::size_t i = 0; repeat && i < repeat->bytes; ++i) {
            repeat->held[i] = static_cast<uint8_t>(is_kept ? repeat->at[i] : ~repeat->at[i]);
        }
    }
}

static bool has_repeated_row(Meeting& meeting) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (repeated_row(meeting, lane)) return true;
    }
    return false;
}

// The accesses of all lanes, recorded when the instruction stores: another warp that stores to the
// same rows has stored by then, or compares with these.
static void record_rows(Meeting& meeting) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        const auto& mine = operands_of<StoreMatrix>(meeting, lane);
        if (!mine.fiber->cluster->detector || !mine.names_row(lane)) continue;
        record_shared(
            *mine.fiber, StoreMatrix::kOperation, mine.fiber->cta->rank, mine.row, mine.row_bytes(),
            true
        );
    }
}

static void store_matrices(Meeting& meeting) {
    record_rows(meeting);
    for_each_element<StoreMatrix>(meeting, [](uint32_t held, uint32_t half, uint8_t* where) {
        const auto value = static_cast<uint16_t>(held >> 16 * half);
        std::memcpy(where, &value, sizeof(value));
    });
    if (!has_repeated_row(meeting)) return;
    bool is_kept = true;
    for_each_element<StoreMatrix>(meeting, [&](uint32_t held, uint32_t half, const uint8_t* where) {
        const auto value = static_cast<uint16_t>(held >> 16 * half);
        is_kept &= std::memcmp(where, &value, sizeof(value)) == 0;
    });
    note_rows(meeting, is_kept);
}

static void store_bytes(Meeting& meeting) {
    record_rows(meeting);
    const auto place = [](const StoreMatrix& owner, uint32_t element) {
        return owner.fiber->cta->window + owner.row + element;
    };
    for_each_byte<StoreMatrix>(meeting, [&](auto held, auto shift, auto& owner, auto element) {
        *place(owner, element) = static_cast<uint8_t>(held >> shift);
    });
    if (!has_repeated_row(meeting)) return;
    bool is_kept = true;
    for_each_byte<StoreMatrix>(meeting, [&](auto held, auto shift, auto& owner, auto element) {
        is_kept &= *place(owner, element) == static_cast<uint8_t>(held >> shift);
    });
    note_rows(meeting, is_kept);
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
    if (mine.names_row(fiber.lane)) {
        mine.row = own_offset(fiber, mine.row);
        check_inside_shared(fiber, mine.row, 16, Operands::kName);
        if (mine.row % 16) fail(fiber, {FaultKind::kMatrixRow, Operands::kName, mine.row});
        const uint32_t rank = fiber.cta->rank;
        if (fiber.cluster->detector && Operands::kWrites) {
            check_no_barrier(fiber, rank, mine.row, mine.row_bytes());
        } else if (fiber.cluster->detector) {
            check_read(fiber, rank, mine.row, mine.row_bytes());
            touch_shared(fiber, Operands::kOperation, rank, mine.row, mine.row_bytes(), false);
        }
    }
    meet(Operands::kName, kAllLanes, act, &mine);
    if (fiber.cluster->detector) stop_if_race(fiber);
}

void store_matrices_of_lane(StoreMatrix& mine) {
    const bool has_bytes = mine.bytes != ByteMatrix::kNone;
    meet_for_matrices(mine, has_bytes ? &store_bytes : &store_matrices);
}

void load_matrices_of_lane(LoadMatrix& mine) {
    const bool has_bytes = mine.bytes != ByteMatrix::kNone;
    meet_for_matrices(mine, has_bytes ? &load_bytes : &load_matrices);
}

}  // namespace tmaasync_emulate
