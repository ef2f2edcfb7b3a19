// Addresses of wgmma's operands in shared memory.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

namespace tmaasync_emulate {

constexpr uint32_t kMmaDepthBytes = 32;  // bytes along K of each row of A and each column of B
constexpr uint32_t kMmaUnitBytes = 16;

// A matrix descriptor, as the PTX ISA defines it.
struct Matrix {
    uint32_t start;
    uint32_t leading;
    uint32_t stride;
    uint32_t swizzle;  // 0: none; 1: 32 bytes; 2: 64 bytes; 3: 128 bytes
    uint32_t base;     // start of the operand in its pattern, in lines of 128 bytes
    bool transposed;   // M or N is contiguous, not K; for elements of two bytes

    Matrix(uint64_t descriptor, bool is_transposed)
        : start((descriptor & 0x3fff) << 4),
          leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4),
          swizzle((4 - static_cast<uint32_t>(descriptor >> 62)) % 4),
          base(descriptor >> 49 & 7),
          transposed(is_transposed) {}

    // Address of the 16 bytes that begin with this row (of A, or column of B) at this byte along K.
    // If transposed, they begin with this row, the first of eight, at this k.
    uint32_t unit(uint32_t row, uint32_t k) const {
        const uint32_t address = start + (transposed ? across(row, k) : along(row, k));
        const uint32_t mask = (1u << swizzle) - 1;
        return address ^ ((address >> 7 & mask) << 4);
    }

    // True if the operand finds other bytes at the address than a load with this swizzle put there.
    // A line that the pattern leaves unchanged proves nothing: a single row may be loaded without a
    // swizzle.
    bool differs(uint32_t loaded_with, uint32_t address) const {
        if (loaded_with == swizzle) return false;
        return loaded_with || (address >> 7 & ((1u << swizzle) - 1));
    }

    // PTX ISA, "base offset": it is 0 if the pattern of eight spans begins at a multiple of its
    // size. A step along the contiguous side stays within the first span.
    bool is_off_pattern() const {
        const uint32_t span = 16u << swizzle;
        return swizzle && base == 0 && start % (8 * span) >= span;
    }

    // Calls act(row, k, address) for all units of some rows.
    template <class Act>
    void for_each_unit(uint32_t begin, uint32_t end, Act act) const {
        if (transposed) {
            for (uint32_t k = 0; k < kMmaDepthBytes / 2; ++k) {
                for (uint32_t row = begin; row < end; row += 8) act(row, k, unit(row, k));
            }
            return;
        }
        for (uint32_t row = begin; row < end; ++row) {
            for (uint32_t k = 0; k < kMmaDepthBytes; k += kMmaUnitBytes) act(row, k, unit(row, k));
        }
    }

private:
    // The offset with K contiguous, in groups of 8 rows.
    uint32_t along(uint32_t row, uint32_t k) const {
        const uint32_t group = row / 8 * stride;
        if (swizzle) return group + row % 8 * (16u << swizzle) + k;
        return group + k / 16 * leading + row % 8 * 16;
    }

    // The offset with M or N contiguous, in groups of 8 k.
    uint32_t across(uint32_t row, uint32_t k) const {
        if (!swizzle) return row / 8 * stride + k / 8 * leading + k % 8 * 16;
        const uint32_t span = 16u << swizzle, elements = span / 2;
        return row / elements * leading + k / 8 * stride + k % 8 * span + row % elements * 2;
    }
};

inline Matrix matrix_a(const Mma& mma) {
    return {mma.a, mma.a_transposed};
}
inline Matrix matrix_b(const Mma& mma) {
    return {mma.b, mma.b_transposed};
}

}  // namespace tmaasync_emulate
