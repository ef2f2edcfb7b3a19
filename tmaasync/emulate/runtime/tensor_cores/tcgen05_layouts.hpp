// Where tcgen05.mma has its matrices in tensor memory: D, A, and the scale factors.
#pragma once

#include <cstdint>

#include "tensor_cores/tcgen05_instruction.hpp"

namespace tmaasync_emulate {

constexpr uint32_t kTensorMemoryLanes = 128;
constexpr uint32_t kWarpLanes = 32;

// The letters of the PTX ISA ("Data path layout organization").
enum class AccumulatorLayout : uint8_t { kA, kB, kC, kD, kE, kF, kG };

inline AccumulatorLayout accumulator_layout(const Tcgen05Form& form, uint32_t m) {
    using enum AccumulatorLayout;
    if (form.ctas == 2) return m == 256 ? kA : form.is_sparse ? kC : kB;
    if (m == 128) return kD;
    if (m == 32) return kG;
    return form.is_ws ? kE : kF;
}

// A part of D: rows follow one another along the lanes, columns along the columns. Row r and column
// n of the part are at lane `lane` + r and column `offset` + n of D's address in that CTA.
struct AccumulatorPart {
    uint32_t row;
    uint32_t rows;
    uint32_t column;
    uint32_t columns;
    uint32_t cta;  // of the pair
    uint32_t lane;
    uint32_t offset;
};

// Calls act(part) for the parts of D. A in tensor memory has the rows of a part in the same lanes
// of the same CTA: layouts B, E and G, where columns are split over lanes, read a copy of A for
// each part (CUTLASS, mma_traits_sm100; for E and G by analogy).
template <class Act>
void for_each_accumulator_part(AccumulatorLayout layout, uint32_t m, uint32_t n, Act act) {
    using enum AccumulatorLayout;
    const bool is_pair = layout <= kC;
    const uint32_t rows = is_pair ? m / 2 : m;  // of a CTA
    const bool is_sparse_lanes = layout == kC || layout == kF;
    const uint32_t step = is_sparse_lanes ? 16 : rows;
    const uint32_t splits = layout == kG ? 4 : layout == kB || layout == kE ? 2 : 1;
    const uint32_t columns = n / splits;
    for (uint32_t cta = 0; cta < (is_pair ? 2u : 1u); ++cta) {
        for (uint32_t row = 0; row < rows; row += step) {
            for (uint32_t split = 0; split < splits; ++split) {
                const uint32_t lane = is_sparse_lanes ? row * 2 : split * rows;
                act(
                    AccumulatorPart{cta * rows + row, step, split * columns, columns, cta, lane, 0}
                );
            }
        }
    }
}

// Columns that D takes in tensor memory.
inline uint32_t accumulator_columns(AccumulatorLayout layout, uint32_t n) {
    using enum AccumulatorLayout;
    return layout == kG ? n / 4 : layout == kB || layout == kE ? n / 2 : n;
}

// Columns that A takes in tensor memory: 32 bits along K in each.
inline uint32_t operand_columns(const InstructionDescriptor& instruction) {
    const uint32_t depth = instruction.stored_k();
    if (instruction.form.is_packed()) return depth / 8;
    return depth * code_bytes(instruction.a) / 4;
}

// A scale factor in tensor memory: a byte of a word. All four groups of 32 lanes have a copy.
struct ScalePlace {
    uint32_t lane;    // in its group of 32
    uint32_t column;  // after the address
    uint32_t byte;
};

// The place of the scale factor `index` along K of a row of A, or column of B, in a matrix of
// `rows` in this CTA, whose first lies at byte `id`. A fifth one begins the next word, after the
// words of all rows (an assumption: the ISA has it in a figure alone).
inline ScalePlace scale_place(uint32_t row, uint32_t index, uint32_t id, uint32_t rows) {
    const uint32_t place = id + index;
    const uint32_t words = (rows + kWarpLanes - 1) / kWarpLanes;
    return {row % kWarpLanes, place / 4 * words + row / kWarpLanes, place % 4};
}

}  // namespace tmaasync_emulate
