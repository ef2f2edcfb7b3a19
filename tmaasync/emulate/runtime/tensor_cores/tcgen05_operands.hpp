// Operands of one tcgen05.mma, as codes: row after row of A, or column after column of B.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor_cores/operands.hpp"
#include "tensor_cores/tcgen05_instruction.hpp"

namespace tmaasync_emulate {

constexpr uint32_t kMaxTcgen05Rows = 256;   // M and N
constexpr uint32_t kMaxTcgen05Depth = 128;  // K

// A variable of 1, 2 or 4 bytes for each element along K. Four-bit elements take a byte each.
class OperandCodes {
public:
    void reset(OperandType type, uint32_t depth, bool is_packed) {
        type_ = type;
        depth_ = depth;
        is_packed_ = is_packed;
    }

    OperandType type() const { return type_; }
    uint32_t depth() const { return depth_; }
    const uint8_t* row(uint32_t row) const { return codes_ + row * depth_ * code_bytes(type_); }

    // Reads rows of a tile in the shared memory of a CTA. The operand has them from `first` on.
    void gather(const Matrix& matrix, const uint8_t* window, uint32_t first, uint32_t rows) {
        if (code_bits(type_) == 32) return gather_whole<uint32_t>(matrix, window, first, rows);
        if (code_bits(type_) == 16) return gather_whole<uint16_t>(matrix, window, first, rows);
        if (code_bits(type_) == 8) return gather_whole<uint8_t>(matrix, window, first, rows);
        matrix.for_each_unit(0, rows, [&](uint32_t row, uint32_t k, uint32_t address) {
            uint8_t unit[2 * kMmaUnitBytes];
            const uint32_t elements = unpack(window + address, unit);
            if (!matrix.transposed) {
                std::memcpy(place(first + row, is_packed_ ? k * 2 : k), unit, elements);
                return;
            }
            for (uint32_t i = 0; i < elements; ++i) *place(first + row + i, k) = unit[i];
        });
    }

    // Reads a row of A from the words of a lane of tensor memory.
    void gather_lane(uint32_t row, const uint32_t* words) {
        uint8_t* const codes = place(row, 0);
        const uint32_t bytes = is_packed_ ? depth_ / 2 : depth_ * code_bytes(type_);
        if (is_packed_) {
            unpack_nibbles(reinterpret_cast<const uint8_t*>(words), bytes, codes);
            return;
        }
        std::memcpy(codes, words, bytes);
        // In its container of 8 bits, a four-bit element has bits 2 to 5 (as in mma.sync).
        const bool is_moved = code_bits(type_) == 4;
        for (uint32_t i = 0; is_moved && i < depth_; ++i) codes[i] = codes[i] >> 2 & 15;
    }

private:
    // Elements of whole bytes.
    template <typename Code>
    void gather_whole(const Matrix& matrix, const uint8_t* window, uint32_t first, uint32_t rows) {
        matrix.for_each_unit(0, rows, [&](uint32_t row, uint32_t k, uint32_t address) {
            const uint8_t* const unit = window + address;
            if (!matrix.transposed) {
                std::memcpy(
                    codes_ + (first + row) * depth_ * sizeof(Code) + k, unit, kMmaUnitBytes
                );
                return;
            }
            for (uint32_t i = 0; i < kMmaUnitBytes / sizeof(Code); ++i) {
                uint8_t* const to = codes_ + ((first + row + i) * depth_ + k) * sizeof(Code);
                std::memcpy(to, unit + i * sizeof(Code), sizeof(Code));
            }
        });
    }

    uint8_t* place(uint32_t row, uint32_t k) {
        return codes_ + (row * depth_ + k) * code_bytes(type_);
    }

    static void unpack_nibbles(const uint8_t* packed, uint32_t bytes, uint8_t* codes) {
        for (uint32_t i = 0; i < bytes; ++i) {
            codes[2 * i] = packed[i] & 15;
            codes[2 * i + 1] = packed[i] >> 4;
        }
    }

    // Writes the codes of 16 bytes of shared memory, and returns their number. Elements of 4 or 6
    // bits lie in the first 8 or 12 of the 16 bytes, low bits first.
    uint32_t unpack(const uint8_t* source, uint8_t* codes) const {
        const uint32_t bits = code_bits(type_);
        if (bits == 4) {
            const uint32_t bytes = is_packed_ ? kMmaUnitBytes : kMmaUnitBytes / 2;
            unpack_nibbles(source, bytes, codes);
            return 2 * bytes;
        }
        for (uint32_t i = 0; i < kMmaUnitBytes; ++i) {
            const uint32_t bit = i * bits;
            const uint32_t pair = source[bit / 8] | uint32_t{source[bit / 8 + 1]} << 8;
            codes[i] = pair >> bit % 8 & 63;
        }
        return kMmaUnitBytes;
    }

    OperandType type_ = OperandType::kNone;
    uint32_t depth_ = 0;
    bool is_packed_ = false;
    // The longest rows are of 64 bytes: 64 elements of 8 bits, and 128 four-bit ones of a byte
    // each.
    alignas(64) uint8_t codes_[kMaxTcgen05Rows * kMaxTcgen05Depth];
};

}  // namespace tmaasync_emulate
