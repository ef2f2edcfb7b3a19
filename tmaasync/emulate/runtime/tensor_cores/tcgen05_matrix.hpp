// The shared-memory matrix descriptor of tcgen05, and the elements in its units of 16 bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "reason.hpp"
#include "tensor_cores/operands.hpp"
#include "tensor_cores/tcgen05_instruction.hpp"

namespace tmaasync_emulate {

// PTX ISA, "Shared memory descriptor" of tcgen05. wgmma's has fewer swizzle codes.
struct Tcgen05MatrixDescriptor {
    uint64_t bits;

    uint32_t swizzle_code() const { return static_cast<uint32_t>(bits >> 61); }
    // As a tensor map counts the swizzles; for a legal code.
    uint32_t swizzle() const {
        constexpr uint8_t kSwizzles[] = {0, Matrix::kAtoms32, 3, 0, 2, 0, 1, 0};
        return kSwizzles[swizzle_code()];
    }
    bool is_absolute() const { return bits >> 52 & 1; }

    // The rule that the descriptor of an operand, "A" or "B", breaks.
    Reason broken_rule(const char* name, OperandType type, bool transposed) const {
        const auto refused = [&](FaultKind kind, const auto&... facts) {
            return Reason(kind, hexadecimal(bits), name, facts...);
        };
        const uint32_t version = bits >> 46 & 7, zeros = bits >> 53 & 0xff;
        if (version != 1) return reason_of_bits("46 to 48", name, version, 1);
        if (zeros) return reason_of_bits("53 to 60", name, zeros, 0);
        const uint32_t code = swizzle_code();
        if (code == 3 || code == 5 || code == 7) return refused(FaultKind::kMatrixSwizzle, code);
        if (is_absolute()) return refused(FaultKind::kMatrixAbsolute);
        if (!transposed) return {};
        if (code == 1 && code_bits(type) != 32) return refused(FaultKind::kMatrixAtoms32);
        if (code == 1 || code_bits(type) != 32) return {};
        return refused(FaultKind::kMatrixSwizzleOfTf32, code);
    }

    // The operand's tile: of `depth` stored elements along K. Elements of 4 and 6 bits fill
    // containers of 8, unless `is_packed`.
    Matrix matrix(OperandType type, uint32_t depth, bool transposed, bool is_packed) const {
        const uint32_t bytes = code_bytes(type);
        return {
            bits, swizzle(), transposed, TileDepth{is_packed ? depth / 2 : depth * bytes, bytes}
        };
    }

private:
    Reason reason_of_bits(
        const char* which, const char* name, uint32_t found, uint32_t wanted
    ) const {
        return {FaultKind::kMatrixBits, which, hexadecimal(bits), name, found, wanted};
    }
};

}  // namespace tmaasync_emulate
