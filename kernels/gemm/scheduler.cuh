#pragma once

// Which tiles of the output a cluster works on, and in which order.
#include "pipeline.cuh"

namespace tmaasync {

// Which tile of so many: an order that keeps the operands of a wave in L2. GROUP_M rows of tiles
// are walked column by column.
struct TilePlace {
    int m_tile;
    int n_tile;

    __device__ TilePlace(int index, int m_tiles, int n_tiles) {
        const int group = index / (GROUP_M * n_tiles);
        const int within = index % (GROUP_M * n_tiles);
        const int rows = min(GROUP_M, m_tiles - group * GROUP_M);
        m_tile = group * GROUP_M + within % rows;
        n_tile = within / rows;
    }

    // The first row and column of this CTA, whose cluster has the tile.
    __device__ int m() const {
        const int rank = kCtasDown == 1 ? 0 : rank_among_sharers();
        return (m_tile * kCtasDown + rank) * kBlockM;
    }

    __device__ int n() const {
        const int rank = kCtasAcross == 1 ? 0 : rank_among_sharers();
        return (n_tile * kCtasAcross + rank) * BLOCK_N;
    }
};

// A place in a matrix of a batch, or in a matrix that is none of a batch: the latter has no third
// coordinate.
template <int kRank>
__device__ Coordinates<kRank> in_batch(int inner, int outer, int batch) {
    if constexpr (kRank == 3) {
        return {inner, outer, batch};
    } else {
        return {inner, outer};
    }
}

// The output tiles of one cluster: matrix by matrix, and in each by TilePlace.
struct TileWalk {
    int m_tiles;
    int n_tiles;
    int k_blocks;
    int batches;
    int index;

    __device__ TileWalk(int m, int n, int k, int batches = 1)
        : m_tiles(ceil_div(m, kBlockM * kCtasDown)),
          n_tiles(ceil_div(n, BLOCK_N * kCtasAcross)),
          k_blocks(ceil_div(k, kBlockK)),
          batches(batches),
          index(blockIdx.x / kClusterCtas) {}

    __device__ bool done() const { return index >= m_tiles * n_tiles * batches; }
    __device__ void step() { index += gridDim.x / kClusterCtas; }

    struct Start {
        int m;
        int n;
        int batch;

        // Stores what starts so many rows and columns further on.
        template <typename Tile>
        __device__ void store(
            const Tile& c, const typename Tile::Shared& chunk, int row, int column
        ) const {
            c.async_store(chunk, place<Tile::kRank>(row, column));
        }

        // Loads what starts there in a matrix like the output.
        template <typename Tile>
        __device__ void load(
            const Tile& c, typename Tile::Shared& chunk, SharedMemBarrier& full, int row, int column
        ) const {
            c.async_copy(chunk, full, place<Tile::kRank>(row, column));
        }

        template <int kRank>
        __device__ Coordinates<kRank> place(int row, int column) const {
            const int inner = C_IS_N_MAJOR ? n + column : m + row;
            const int outer = C_IS_N_MAJOR ? m + row : n + column;
            return in_batch<kRank>(inner, outer, batch);
        }
    };

    __device__ Start start() const {
        const int tiles = m_tiles * n_tiles;
        const int batch = batches == 1 ? 0 : index / tiles;
        const TilePlace place(index - batch * tiles, m_tiles, n_tiles);
        return {place.m(), place.n(), batch};
    }
};

}  // namespace tmaasync
