// Addresses of the tensor cores' operands in shared memory, for wgmma and tcgen05.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

namespace tmaasync_emulate {

constexpr uint32_t kMmaDepthBytes = 32;  // bytes along K of each row of A and each column of B
constexpr uint32_t kMmaUnitBytes = 16;

// The shape of an operand tile of one instruction, apart from its rows.
struct TileDepth {
    uint32_t depth_bytes = kMmaDepthBytes;  // bytes along K of a row
    uint32_t element_bytes = 2;             // of an element, or of the container that it fills
};

// An operand as a matrix descriptor describes it (PTX ISA, "Shared memory descriptor").
struct Matrix {
    static constexpr uint32_t kAtoms32 = 4;  // swizzle of 128 bytes with atoms of 32

    uint32_t start;
    uint32_t leading;
    uint32_t stride;
    uint32_t swizzle;  // 0: none; 1: 32 bytes; 2: 64 bytes; 3: 128 bytes; kAtoms32
    uint32_t base;     // start of the operand in its pattern, in lines of 128 bytes
    bool transposed;   // M or N is contiguous, not K
    TileDepth tile;

    // By a descriptor of wgmma.
    Matrix(uint64_t descriptor, bool is_transposed)
        : Matrix(
              descriptor,
              (4 - static_cast<uint32_t>(descriptor >> 62)) % 4,
              is_transposed,
              TileDepth{}
          ) {}

    Matrix(uint64_t descriptor, uint32_t its_swizzle, bool is_transposed, TileDepth its_tile)
        : start((descriptor & 0x3fff) << 4),
          leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4),
          swizzle(its_swizzle),
          base(descriptor >> 49 & 7),
          transposed(is_transposed),
          tile(its_tile) {}

    // Address of the 16 bytes that begin with this row (of A, or column of B) at this byte along K.
    // If transposed, they begin with this row, the first of `unit_rows`, at this element along K.
    uint32_t unit(uint32_t row, uint32_t k) const {
        const uint32_t address = start + (transposed ? across(row, k) : along(row, k));
        return address ^ moved_bits(address);
    }

    // True if the operand finds other bytes at the address than a load with this swizzle put there.
    // A line that the pattern leaves unchanged proves nothing: a single row may be loaded without a
    // swizzle.
    bool differs(uint32_t loaded_with, uint32_t address) const {
        if (loaded_with == swizzle) return false;
        return loaded_with || moved_bits(address);
    }

    // PTX ISA, "base offset": it is 0 if the pattern of eight spans begins at a multiple of its
    // size. A step along the contiguous side stays within the first span.
    bool is_off_pattern() const { return swizzle && base == 0 && start % (8 * span()) >= span(); }

    // Bytes of a row of the swizzle pattern; 16 without swizzle.
    uint32_t span() const { return 16u << std::min(swizzle, 3u); }
    // Rows in the 16 bytes of a unit.
    uint32_t unit_rows() const { return transposed ? kMmaUnitBytes / tile.element_bytes : 1; }

    // Calls act(row, k, address) for all units of some rows.
    template <class Act>
    void for_each_unit(uint32_t begin, uint32_t end, Act act) const {
        if (transposed) {
            const uint32_t depth = tile.depth_bytes / tile.element_bytes;
            for (uint32_t k = 0; k < depth; ++k) {
                for (uint32_t row = begin; row < end; row += unit_rows()) act(row, k, unit(row, k));
            }
            return;
        }
        for (uint32_t row = begin; row < end; ++row) {
            for (uint32_t k = 0; k < tile.depth_bytes; k += kMmaUnitBytes) {
                act(row, k, unit(row, k));
            }
        }
    }

private:
    // The bits of an address that the swizzle inverts.
    uint32_t moved_bits(uint32_t address) const {
        if (swizzle == kAtoms32) return (address >> 7 & 3) << 5;
        return (address >> 7 & ((1u << swizzle) - 1)) << 4;
    }

    // The offset with K contiguous, in groups of 8 rows.
    uint32_t along(uint32_t row, uint32_t k) const {
        const uint32_t group = row / 8 * stride;
        if (swizzle) return group + row % 8 * span() + k;
        return group + k / 16 * leading + row % 8 * 16;
    }

    // The offset with M or N contiguous, in groups of 8 k; of 4 with atoms of 32 bytes.
    uint32_t across(uint32_t row, uint32_t k) const {
        const uint32_t elements = span() / tile.element_bytes;
        if (!swizzle) return row / elements * stride + k / 8 * leading + k % 8 * 16;
        const uint32_t group = swizzle == kAtoms32 ? 4 : 8;
        return row / elements * leading + k / group * stride + k % group * span() +
               row % elements * tile.element_bytes;
    }
};

inline Matrix matrix_a(const Mma& mma) {
    return {mma.a, mma.a_transposed};
}
inline Matrix matrix_b(const Mma& mma) {
    return {mma.b, mma.b_transposed};
}

}  // namespace tmaasync_emulate
