// stmatrix and ldmatrix.
#pragma once

#include <cstdint>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

template <bool kStores>
struct LaneMatrices {
    static constexpr const char* kName = kStores ? "stmatrix" : "ldmatrix";
    static constexpr Operation kOperation = kStores ? Operation::kStmatrix : Operation::kLdmatrix;
    static constexpr bool kWrites = kStores;

    uint32_t row;
    int matrices;
    bool is_transposed;
    ByteMatrix bytes = ByteMatrix::kNone;
    uint32_t values[4];
    Fiber* fiber;

    bool has_transposed_bytes() const {
        return bytes == ByteMatrix::kTransposed || bytes >= ByteMatrix::kTransposedFrom4Bits;
    }
    // Bits of an element of a matrix of bytes.
    uint32_t element_bits() const {
        using enum ByteMatrix;
        if (bytes == kFrom4Bits || bytes == kTransposedFrom4Bits) return 4;
        return bytes == kFrom6Bits || bytes == kTransposedFrom6Bits ? 6 : 8;
    }
    // Bytes of a row that are read or written; packed elements leave a gap after theirs.
    uint32_t row_bytes() const { return 2 * element_bits(); }
    // Rows of a matrix, whose addresses as many lanes give.
    int rows() const { return !kStores && has_transposed_bytes() ? 16 : 8; }
    bool names_row(uint32_t lane) const { return lane < static_cast<uint32_t>(matrices * rows()); }
};
using StoreMatrix = LaneMatrices<true>;
using LoadMatrix = LaneMatrices<false>;

void store_matrices_of_lane(StoreMatrix& mine);

void load_matrices_of_lane(LoadMatrix& mine);

}  // namespace tmaasync_emulate
