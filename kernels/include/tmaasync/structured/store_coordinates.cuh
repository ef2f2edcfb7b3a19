#pragma once

#include <tmaasync/ragged.cuh>
#include <tmaasync/structured/output_chunk.cuh>

namespace tmaasync {

// True for a map whose stores stop at the end of a sequence.
template <typename CTile>
struct IsRagged {
    static constexpr bool kValue = false;
};
template <typename T, typename TileShape, typename BoxShape, Swizzle kSwizzle, int kRaggedDim>
struct IsRagged<RaggedTensorMap<T, TileShape, BoxShape, kSwizzle, kRaggedDim>> {
    static constexpr bool kValue = true;
};

// Issue the copy of a chunk in one thread. The chunk starts `row` rows and `column` columns into a
// tile, whose first row and column are m and n. For a map of rank 3, tile.batch is the matrix. In a
// ragged map m or n counts from the start of tile.rows, a RaggedSequence.
template <typename CTile, OutputMajor kMajor, typename Tile, typename Issue>
__device__ __forceinline__ void issue_at(
    const Tile& tile, int row, int column, const Issue& issue
) {
    const int inner = kMajor == OutputMajor::kN ? tile.n + column : tile.m + row;
    const int outer = kMajor == OutputMajor::kN ? tile.m + row : tile.n + column;
    if constexpr (IsRagged<CTile>::kValue) {
        issue(tile.rows, Coordinates<2>{inner, outer});
    } else if constexpr (CTile::kRank == 3) {
        issue(Coordinates<3>{inner, outer, tile.batch});
    } else {
        issue(Coordinates<2>{inner, outer});
    }
}

}  // namespace tmaasync
