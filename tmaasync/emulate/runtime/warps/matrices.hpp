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
    uint32_t values[4];
    Fiber* fiber;
};
using StoreMatrix = LaneMatrices<true>;
using LoadMatrix = LaneMatrices<false>;

void store_matrices_of_lane(StoreMatrix& mine);

void load_matrices_of_lane(LoadMatrix& mine);

}  // namespace tmaasync_emulate
