#pragma once

// The tile scheduler: which tiles of the output a cluster works on, and in which order. It is
// static and persistent: any number of clusters covers the output.
#include "pipeline.cuh"

namespace tmaasync {

// The index-th of m_tiles x n_tiles tiles in rasterisation order. GROUP_M rows of tiles are visited
// column by column, which keeps the operands of a wave in L2 (L2 swizzle: CUTLASS's threadblock
// swizzle, Triton's grouped ordering).
struct RasterizedTile {
    int m_tile;
    int n_tile;

    __device__ RasterizedTile(int index, int m_tiles, int n_tiles) {
        const int group = index / (GROUP_M * n_tiles);
        const int within = index % (GROUP_M * n_tiles);
        const int rows = min(GROUP_M, m_tiles - group * GROUP_M);
        m_tile = group * GROUP_M + within % rows;
        n_tile = within / rows;
    }

    // The first row and column of this CTA, whose cluster has the tile.
    __device__ int m() const {
        const int rank = kClusterM == 1 ? 0 : Sharing::rank();
        return (m_tile * kClusterM + rank) * kBlockM;
    }

    __device__ int n() const {
        const int rank = kClusterN == 1 ? 0 : Sharing::rank();
        return (n_tile * kClusterN + rank) * BLOCK_N;
    }
};

// Coordinates in a matrix, or in one of a batch of matrices where the map has a third dimension.
template <int kRank>
__device__ Coordinates<kRank> in_batch(int inner, int outer, int batch) {
    if constexpr (kRank == 3) {
        return {inner, outer, batch};
    } else {
        return {inner, outer};
    }
}

// A CTA's tile of the output, by its first row and column.
struct OutputTile {
    int m;
    int n;
    int batch;
};

// A cluster's tiles: matrix by matrix of a batch, in each in rasterisation order.
struct TileScheduler {
    int m_tiles;
    int n_tiles;
    int k_blocks;
    int batches;
    int index;

    __device__ TileScheduler(int m, int n, int k, int batches = 1)
        : m_tiles(ceil_div(m, kBlockM * kClusterM)),
          n_tiles(ceil_div(n, BLOCK_N * kClusterN)),
          k_blocks(ceil_div(k, kBlockK)),
          batches(batches),
          index(blockIdx.x / kClusterCtas) {}

    __device__ bool done() const { return index >= m_tiles * n_tiles * batches; }
    __device__ void step() { index += gridDim.x / kClusterCtas; }

    __device__ OutputTile tile() const {
        const int tiles = m_tiles * n_tiles;
        const int batch = batches == 1 ? 0 : index / tiles;
        const RasterizedTile tile(index - batch * tiles, m_tiles, n_tiles);
        return {tile.m(), tile.n(), batch};
    }
};

}  // namespace tmaasync
