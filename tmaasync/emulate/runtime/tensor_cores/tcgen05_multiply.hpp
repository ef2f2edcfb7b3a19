// The arithmetic of one tcgen05.mma, from the codes of its operands to words of D.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor_cores/tcgen05_instruction.hpp"
#include "tensor_cores/tcgen05_operands.hpp"

namespace tmaasync_emulate {

constexpr uint32_t kMaxScales = 6;  // along K
// Columns of B in memory: vectors may begin at any eighth column.
constexpr uint32_t kDecodedPitch = kMaxTcgen05Rows + 16;

// The operands as they are multiplied. Values are floats, integers of 32 bits, or for four-bit
// elements integers of 16 bits: twice the element. Exponents are explained in tcgen05_elements.hpp.
struct DecodedOperands {
    alignas(64) uint32_t a[kMaxTcgen05Rows * 48];  // [M][K]
    alignas(64) uint32_t b[kDecodedPitch * 64];    // [K][kDecodedPitch]
    alignas(64) int16_t a_exponents[kMaxTcgen05Rows * 96];
    alignas(64) int16_t b_exponents[kDecodedPitch * kMaxTcgen05Depth];
    alignas(64) int16_t a_scales[kMaxTcgen05Rows];  // exponents of mxf8f6f4's scale factors
    alignas(64) int16_t b_scales[kDecodedPitch];
};

// How the terms of an element of D, a[k] * b[k] and D's old value, are added: aligned to the
// greatest encoded exponent among them, cut towards zero and added exactly; a float is rounded
// towards zero.
struct SumRule {
    int32_t kept_bits = 25;          // below the greatest exponent
    int32_t least_exponent = -1000;  // that terms are aligned to
    uint32_t kept_of_float = ~0u;    // bits of a float in D
};

// benchmarks/probe_tensor_core_bits.py on an H200.
constexpr SumRule kHopperSums{.least_exponent = -133};

// One instruction. Fill the codes, and the rest that the instruction has; decode; then multiply
// every part of D once. About 0.5 MB: keep one, and reset it for each instruction.
class Tcgen05Multiplication {
public:
    OperandCodes a;  // M rows, of stored_k() elements
    OperandCodes b;  // N rows, of k elements
    uint8_t a_scales[kMaxTcgen05Rows][kMaxScales];
    uint8_t b_scales[kMaxTcgen05Rows][kMaxScales];
    // Sparse: where along K each stored element of A is.
    uint8_t indices[kMaxTcgen05Rows][kMaxTcgen05Depth];
    bool accumulates = true;     // false: D's words are not read
    uint32_t scale_input_d = 0;  // D counts 2^-scale_input_d times
    bool is_of_warp = false;     // mma.sync of sm_120
    SumRule sums;

    void reset(const InstructionDescriptor& instruction);

    [[gnu::always_inline]] const InstructionDescriptor& instruction() const { return instruction_; }

    void decode();

    // Multiplies rows of A by columns of B. D's words: row r and column n of the part at
    // d[r * pitch + n]. A half fills the low half of its word; the upper half becomes 0.
    void multiply(
        uint32_t row,
        uint32_t rows,
        uint32_t column,
        uint32_t columns,
        uint32_t* d,
        std::size_t pitch
    ) const;

    [[gnu::always_inline]] const DecodedOperands& decoded() const { return decoded_; }

private:
    InstructionDescriptor instruction_{0, {}};
    DecodedOperands decoded_;
};

}  // namespace tmaasync_emulate
