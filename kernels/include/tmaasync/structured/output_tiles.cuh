#pragma once

#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/tile.cuh>

namespace tmaasync {

// The index-th of m_tiles x n_tiles tiles in rasterisation order: groups of kGroupM rows of tiles
// are visited column by column, which keeps the operands of a wave in L2 (L2 swizzle: CUTLASS's
// threadblock swizzle, Triton's grouped ordering).
template <int kGroupM>
struct RasterizedTile {
    int m_tile;
    int n_tile;

    __device__ __forceinline__ RasterizedTile(int index, int m_tiles, int n_tiles) {
        const u32 group_tiles = kGroupM * static_cast<u32>(n_tiles);
        const int group = static_cast<u32>(index) / group_tiles;
        const int within = static_cast<u32>(index) % group_tiles;
        const int rows = min(kGroupM, m_tiles - group * kGroupM);
        m_tile = group * kGroupM + within % rows;
        n_tile = within / rows;
    }
};

// Coordinates in a matrix, or, if the map has a third dimension, in one matrix of a batch.
template <int kRank>
__device__ __forceinline__ Coordinates<kRank> in_batch(int inner, int outer, int batch) {
    static_assert(kRank == 2 || kRank == 3, "a matrix, or a batch of matrices");
    if constexpr (kRank == 3) {
        return {inner, outer, batch};
    } else {
        return {inner, outer};
    }
}

// A CTA's output tile, given by its first row and column.
struct OutputTile {
    int m;
    int n;
    int batch;
};

// The tiles of an m x n output, or of a batch of outputs: matrix by matrix, each in rasterisation
// order. kTileM x kTileN is the tile of one CTA; the tiles of a cluster are adjacent.
template <int kTileM, int kTileN, typename ClusterOfTiles = ClusterShape<>, int kGroupM = 8>
struct OutputTiles {
    using Cluster = ClusterOfTiles;

    int m_tiles;
    int n_tiles;
    int batches;

    __device__ __forceinline__ OutputTiles(int m, int n, int batches = 1)
        : m_tiles(count_tiles(m, kTileM * Cluster::kM)),
          n_tiles(count_tiles(n, kTileN * Cluster::kN)),
          batches(batches) {}

    // The number of cluster tiles.
    __device__ __forceinline__ int count() const { return m_tiles * n_tiles * batches; }

    // This CTA's part of a cluster's tile.
    __device__ __forceinline__ OutputTile at(int index) const {
        const int tiles = m_tiles * n_tiles;
        const int batch = batches == 1 ? 0 : index / tiles;
        const RasterizedTile<kGroupM> tile(index - batch * tiles, m_tiles, n_tiles);
        return {
            (tile.m_tile * Cluster::kM + Cluster::rank_m()) * kTileM,
            (tile.n_tile * Cluster::kN + Cluster::rank_n()) * kTileN, batch
        };
    }
};

}  // namespace tmaasync
