#pragma once

namespace tmaasync {

// The first of the 64 rows that are loaded for a tile: `row`, but at most `last`. With `last` 64
// rows before the end of A, no row lies outside A. TMA fills outside rows with zeros at a fraction
// of the speed of loads (docs/decisions/gemm.md).
__device__ __forceinline__ constexpr int shifted_row(int row, int last) {
    return row < last ? row : last;
}
__device__ __forceinline__ constexpr int shifted_by(int row, int last) {
    return row - shifted_row(row, last);
}

// The `last` of tiles that are not shifted.
inline constexpr int kUnshifted = 0x7fffffff;

}  // namespace tmaasync
