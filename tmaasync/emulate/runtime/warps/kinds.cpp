// mma.sync with a kind (sm_120a): the arithmetic of tcgen05.mma on registers of a warp.
#include "schedule/caller.hpp"
#include "schedule/faults.hpp"
#include "tensor_cores/tcgen05_layouts.hpp"
#include "tensor_cores/tcgen05_multiply.hpp"
#include "warps/lanes.hpp"

namespace tmaasync_emulate {

namespace {

constexpr uint32_t kWordsOfRow = 8;  // 32 bytes along K

const WarpMma& mma_of(Meeting& meeting, uint32_t lane) {
    return operands_of<WarpMma>(meeting, lane);
}

// PTX ISA, "Matrix Fragments for mma.m16n8k32": register i of A has rows lane / 4 + i % 2 * 8 and
// the half i / 2 of K.
void gather_row(Meeting& meeting, uint32_t row, OperandCodes& to) {
    uint32_t words[kWordsOfRow];
    for (uint32_t i = 0; i < kWordsOfRow; ++i) {
        words[i] = mma_of(meeting, row % 8 * 4 + i % 4).a[i / 4 * 2 + row / 8];
    }
    to.gather_lane(row, words);
}

void gather_column(Meeting& meeting, uint32_t column, bool is_sparse, OperandCodes& to) {
    uint32_t words[2 * kWordsOfRow];
    for (uint32_t i = 0; i < (is_sparse ? 2 : 1) * kWordsOfRow; ++i) {
        words[i] = mma_of(meeting, column * 4 + i % 4).b[i / 4];
    }
    to.gather_lane(column, words);
}

// CUTLASS, mma_traits_sm120_sparse: lane 4 q + j has half j / 2 of the metadata of row q + 8 (j %
// 2).
void gather_metadata(Meeting& meeting, Tcgen05Multiplication& to) {
    for (uint32_t row = 0; row < 16; ++row) {
        const uint32_t lane = row % 8 * 4 + row / 8;
        const uint64_t low = mma_of(meeting, lane).metadata;
        const uint64_t high = mma_of(meeting, lane + 2).metadata;
        const uint32_t broken =
            decode_metadata(to.instruction(), low | high << 32, to.indices[row]);
        if (!broken) continue;
        report_fault(
            *meeting.fibers[lane],
            {FaultKind::kSparseMetadataOfLane, lane, row, hexadecimal(broken & 15), kSelectors}
        );
        return;
    }
}

// CUTLASS, mma_traits_sm120: the scale factors of rows 0 to 7 are in the first lane of the pair,
// the others in the second.
void gather_scales(Meeting& meeting, const WarpMma& first, Tcgen05Multiplication& to) {
    const uint32_t scales = to.instruction().scales();
    for (uint32_t row = 0; row < 16; ++row) {
        const uint32_t word =
            mma_of(meeting, row % 8 * 4 + first.a_thread % 2 * 2 + row / 8).a_scales;
        for (uint32_t i = 0; i < scales; ++i) {
            to.a_scales[row][i] = static_cast<uint8_t>(word >> 8 * (first.a_byte + i));
        }
    }
    for (uint32_t column = 0; column < 8; ++column) {
        const uint32_t word = mma_of(meeting, column * 4 + first.b_thread % 4).b_scales;
        for (uint32_t i = 0; i < scales; ++i) {
            to.b_scales[column][i] = static_cast<uint8_t>(word >> 8 * (first.b_byte + i));
        }
    }
}

// Calls act(lane, i, the element's word of D) for the four elements of each lane.
template <typename Act>
void for_each_sum(uint32_t* d, Act act) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            act(lane, i, d[row * 8 + column]);
        }
    }
}

void multiply_lanes(Meeting& meeting) {
    Tcgen05Multiplication& multiplication = meeting.fibers[0]->cluster->mma_buffers->multiplication;
    const WarpMma& first = mma_of(meeting, 0);
    InstructionDescriptor instruction(
        first.instruction,
        {.kind = first.kind, .scale_vector = static_cast<uint8_t>(first.scale_vector)}
    );
    instruction.m = 16;
    instruction.n = 8;
    multiplication.reset(instruction);
    multiplication.is_of_warp = true;
    multiplication.sums = kHopperSums;
    for (uint32_t row = 0; row < 16; ++row) gather_row(meeting, row, multiplication.a);
    for (uint32_t column = 0; column < 8; ++column) {
        gather_column(meeting, column, instruction.is_sparse, multiplication.b);
    }
    if (instruction.is_sparse) gather_metadata(meeting, multiplication);
    if (instruction.form.is_block_scaled()) gather_scales(meeting, first, multiplication);
    multiplication.decode();

    uint32_t d[16 * 8];
    const bool has_halves = instruction.d == MmaSum::kHalf;
    for_each_sum(d, [&](uint32_t lane, uint32_t i, uint32_t& word) {
        const uint32_t* const sums = mma_of(meeting, lane).sums;
        word = has_halves ? sums[i / 2] >> i % 2 * 16 & 0xffff : sums[i];
    });
    multiplication.multiply(0, 16, 0, 8, d, 8);
    for_each_sum(d, [&](uint32_t lane, uint32_t i, uint32_t word) {
        uint32_t* const sums = operands_of<WarpMma>(meeting, lane).sums;
        if (!has_halves) {
            sums[i] = word;
        } else {
            sums[i / 2] = i % 2 ? (sums[i / 2] & 0xffff) | word << 16 : word;
        }
    });
}

}  // namespace

void multiply_with_warp(WarpMma& mma) {
    TMAASYNC_EMULATE_CALLER();
    meet("mma.sync", kAllLanes, &multiply_lanes, &mma);
}

}  // namespace tmaasync_emulate
