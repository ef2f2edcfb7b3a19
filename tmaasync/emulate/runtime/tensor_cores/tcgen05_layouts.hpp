// Where tcgen05.mma has its matrices in tensor memory: D, A, and the scale factors.
#pragma once

#include <cstdint>
#include <initializer_list>

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
// `rows`, whose first lies at byte `id`. Rows of A count from the CTA's first one, columns of B
// from the part's first one, whose lanes have them. A fifth one begins the next word, after the
// words of all rows (an assumption: the ISA has it in a figure alone).
inline ScalePlace scale_place(uint32_t row, uint32_t index, uint32_t id, uint32_t rows) {
    const uint32_t place = id + index;
    const uint32_t words = (rows + kWarpLanes - 1) / kWarpLanes;
    return {row % kWarpLanes, place / 4 * words + row / kWarpLanes, place % 4};
}

// --- sparse metadata -----------------------------------------------------------------------------

// Columns of the metadata in tensor memory.
inline uint32_t metadata_columns(Tcgen05Kind kind) {
    return kind <= Tcgen05Kind::kTF32 ? 1 : 2;
}

// The metadata of a row of a part: four bits for each group of elements along K, the first in the
// lowest. read(lane, column) returns a word, its lane counted from the part's first one (CUTLASS,
// tmem_e_frg; for layouts C and F as a harness of github.com/sf-tensor/tcgen05 writes them).
template <class Read>
uint64_t row_metadata(Tcgen05Kind kind, uint32_t row, Read read) {
    if (metadata_columns(kind) == 2) return read(row, 0) | uint64_t{read(row, 1)} << 32;
    const uint32_t lane = row / 16 * 16 + row % 8, shift = row / 8 % 2 * 16;
    return (read(lane, 0) >> shift & 0xffff) | (read(lane + 8, 0) >> shift & 0xffff) << 16;
}

// Legal selectors of two of four, as messages list them.
constexpr const char* kSelectors = "4, 6, 8, 9, c, d, e";

// Writes where along K each stored element of a row is. Returns 0, or the first illegal
// selector and bit 4.
// One of two elements of tf32, two of four, and of packed elements two pairs of four.
inline uint32_t decode_metadata(
    const InstructionDescriptor& instruction, uint64_t metadata, uint8_t* indices
) {
    constexpr uint32_t kLegal =
        1u << 0x4 | 1u << 0x8 | 1u << 0xc | 1u << 0x9 | 1u << 0xd | 1u << 0x6 | 1u << 0xe;
    const bool is_tf32 = instruction.form.kind == Tcgen05Kind::kTF32;
    const bool has_pairs = instruction.form.is_packed();
    const uint32_t group = is_tf32 ? 2 : has_pairs ? 8 : 4;
    for (uint32_t k = 0; k < instruction.k; k += group) {
        const uint32_t selector = metadata >> (k / group * 4) & 15;
        const uint32_t first = selector & 3, second = selector >> 2;
        if (is_tf32) {
            if (selector != 0x4 && selector != 0xe) return selector | 16;
            *indices++ = static_cast<uint8_t>(k + (selector == 0xe));
            continue;
        }
        if (!(kLegal >> selector & 1)) return selector | 16;
        for (const uint32_t place : {first, second}) {
            const uint32_t at = k + (has_pairs ? 2 * place : place);
            *indices++ = static_cast<uint8_t>(at);
            if (has_pairs) *indices++ = static_cast<uint8_t>(at + 1);
        }
    }
    return 0;
}

}  // namespace tmaasync_emulate
