// The instruction descriptor of tcgen05.mma: 32 bits, read by the kind of the instruction.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "reason.hpp"

namespace tmaasync_emulate {

// Element types of A and B.
enum class OperandType : uint8_t {
    kF16,
    kBF16,
    kTF32,
    kE4M3,
    kE5M2,
    kE2M3,
    kE3M2,
    kE2M1,
    kU8,
    kS8,
    kNone,  // a code that means no type
};

// The mnemonic of a tcgen05.mma, and the chip.
struct Tcgen05Form {
    Tcgen05Kind kind;
    uint8_t ctas = 1;  // cta_group
    bool is_sparse = false;
    bool is_ws = false;
    uint8_t scale_vector = 0;  // 1X, 2X or 4X; 0 without block scales
    bool a_in_tensor_memory = false;
    bool is_sm_103 = false;

    bool is_block_scaled() const { return kind >= Tcgen05Kind::kMXF8F6F4; }
    // Two elements of four bits in a byte; the other kinds have bytes or containers of 16 bytes.
    bool is_packed() const { return kind >= Tcgen05Kind::kMXF4; }
};

// PTX ISA, "Instruction descriptor".
struct InstructionDescriptor {
    uint32_t bits;
    Tcgen05Form form;
    OperandType a = OperandType::kNone;
    OperandType b = OperandType::kNone;
    MmaSum d = MmaSum::kFloat;
    bool has_d_type = true;  // false for a code that means no type of D
    uint32_t m;              // of both CTAs of a pair
    uint32_t n;
    uint32_t k;  // along the dimension that sparse A leaves out half of
    bool a_negated;
    bool b_negated;
    bool a_transposed;
    bool b_transposed;
    bool is_sparse;
    bool saturates = false;
    uint32_t selector = 0;    // sparsity selector
    uint32_t max_shift = 0;   // ws
    uint32_t a_scale_id = 0;  // first byte of the word in tensor memory
    uint32_t b_scale_id = 0;
    bool has_e8m0_scales = true;  // false: e4m3

    InstructionDescriptor(uint32_t bits, const Tcgen05Form& form);

    // Elements along K that A has in memory.
    uint32_t stored_k() const { return is_sparse ? k / 2 : k; }
    // Scale factors along K of a row.
    uint32_t scales() const { return k == 96 ? form.scale_vector * 3u / 2 : form.scale_vector; }
    // The rule that the descriptor or the form breaks.
    Reason broken_rule() const;
};

// Bits of an element's code.
constexpr uint32_t code_bits(OperandType type) {
    switch (type) {
        case OperandType::kTF32:
            return 32;
        case OperandType::kF16:
        case OperandType::kBF16:
            return 16;
        case OperandType::kE2M3:
        case OperandType::kE3M2:
            return 6;
        case OperandType::kE2M1:
            return 4;
        default:
            return 8;
    }
}

// Bytes of the variable that holds a code.
constexpr uint32_t code_bytes(OperandType type) {
    return code_bits(type) <= 8 ? 1 : code_bits(type) / 8;
}

}  // namespace tmaasync_emulate
