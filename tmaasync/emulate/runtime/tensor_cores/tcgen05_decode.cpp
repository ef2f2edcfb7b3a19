// Decodes the operands of a tcgen05.mma.
#include <cstring>

#include "tensor_cores/tcgen05_elements.hpp"
#include "tensor_cores/tcgen05_multiply.hpp"

namespace tmaasync_emulate {

namespace {

// Calls put(row, k, value as a word, exponent) for all elements of an operand.
template <typename Code, typename Element, typename Put>
void decode_rows(const OperandCodes& codes, uint32_t rows, Element element, Put put) {
    for (uint32_t row = 0; row < rows; ++row) {
        const uint8_t* const source = codes.row(row);
        for (uint32_t k = 0; k < codes.depth(); ++k) {
            Code code;
            std::memcpy(&code, source + k * sizeof(code), sizeof(code));
            const FloatElement found = element(code);
            put(row, k, found);
        }
    }
}

template <typename Put>
void decode_operand(const OperandCodes& codes, uint32_t rows, Put put) {
    switch (codes.type()) {
        case OperandType::kF16:
            return decode_rows<uint16_t>(codes, rows, half_element, put);
        case OperandType::kBF16:
            return decode_rows<uint16_t>(
                codes, rows, [](uint32_t code) { return float_element(code << 16); }, put
            );
        case OperandType::kTF32:
            return decode_rows<uint32_t>(
                codes, rows, [](uint32_t code) { return float_element(code & ~0x1fffu); }, put
            );
        default: {
            const SmallFloats& table = small_floats(codes.type());
            return decode_rows<uint8_t>(
                codes, rows, [&](uint8_t code) { return table[code]; }, put
            );
        }
    }
}

// Calls put(row, k, value) for all elements of an operand of integers.
template <typename Put>
void decode_integers(const OperandCodes& codes, uint32_t rows, Put put) {
    const bool is_signed = codes.type() == OperandType::kS8;
    for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t k = 0; k < codes.depth(); ++k) {
            const uint8_t code = codes.row(row)[k];
            put(row, k, is_signed ? static_cast<int8_t>(code) : static_cast<int32_t>(code));
        }
    }
}

void decode_scales(
    const uint8_t (*codes)[kMaxScales], uint32_t rows, bool has_scales, int16_t* exponents
) {
    for (uint32_t row = 0; row < rows; ++row) {
        const ScaleFactor scale = e8m0_scale(codes[row][0]);
        const int32_t exponent = scale.is_nan ? kExponentOfSpecial : scale.exponent;
        exponents[row] = static_cast<int16_t>(has_scales ? exponent : 0);
    }
}

}  // namespace

void Tcgen05Multiplication::reset(const InstructionDescriptor& instruction) {
    instruction_ = instruction;
    a.reset(instruction.a, instruction.stored_k(), instruction.form.is_packed());
    b.reset(instruction.b, instruction.k, instruction.form.is_packed());
    accumulates = true;
    scale_input_d = 0;
    is_of_warp = false;
    sums = {};
}

void Tcgen05Multiplication::decode() {
    const InstructionDescriptor& at = instruction_;
    const uint32_t depth = at.stored_k();
    DecodedOperands& to = decoded_;
    if (at.form.kind == Tcgen05Kind::kI8) {
        decode_integers(a, at.m, [&](uint32_t row, uint32_t k, int32_t value) {
            to.a[row * depth + k] = static_cast<uint32_t>(value);
        });
        decode_integers(b, at.n, [&](uint32_t column, uint32_t k, int32_t value) {
            to.b[k * kDecodedPitch + column] = static_cast<uint32_t>(value);
        });
        return;
    }
    const float a_sign = at.a_negated ? -1.0f : 1.0f, b_sign = at.b_negated ? -1.0f : 1.0f;
    if (at.form.is_packed()) {
        auto* const a_twice = reinterpret_cast<int16_t*>(to.a);
        auto* const b_twice = reinterpret_cast<int16_t*>(to.b);
        decode_operand(a, at.m, [&](uint32_t row, uint32_t k, FloatElement element) {
            a_twice[row * depth + k] = static_cast<int16_t>(2 * a_sign * element.value);
            to.a_exponents[row * depth + k] = element.exponent;
        });
        decode_operand(b, at.n, [&](uint32_t column, uint32_t k, FloatElement element) {
            b_twice[k * kDecodedPitch + column] = static_cast<int16_t>(2 * b_sign * element.value);
            to.b_exponents[k * kDecodedPitch + column] = element.exponent;
        });
        return;
    }
    decode_operand(a, at.m, [&](uint32_t row, uint32_t k, FloatElement element) {
        to.a[row * depth + k] = std::bit_cast<uint32_t>(a_sign * element.value);
        to.a_exponents[row * depth + k] = element.exponent;
    });
    decode_operand(b, at.n, [&](uint32_t column, uint32_t k, FloatElement element) {
        to.b[k * kDecodedPitch + column] = std::bit_cast<uint32_t>(b_sign * element.value);
        to.b_exponents[k * kDecodedPitch + column] = element.exponent;
    });
    decode_scales(a_scales, at.m, at.form.is_block_scaled(), to.a_scales);
    decode_scales(b_scales, at.n, at.form.is_block_scaled(), to.b_scales);
}

}  // namespace tmaasync_emulate
