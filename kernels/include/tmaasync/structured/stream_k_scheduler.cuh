#pragma once

#include <tmaasync/structured/k_range.cuh>
#include <tmaasync/structured/schedule.cuh>

namespace tmaasync {

// The K blocks of a tile that one cluster multiplies. The cluster with the last blocks finishes the
// tile. The earlier blocks belong to `peers` clusters, whose indices directly precede its own.
template <typename Tile, typename Cluster>
struct StreamKTile : Tile {
    KRange k_blocks;
    int peers;
    bool finishes;
};

// Hybrid stream-K. The K blocks of the first tiles are divided into one range per cluster; ranges
// are equal up to one block. The other tiles are not split, the same number for every cluster. With
// more tiles than clusters a range has one to two tiles, so that at most two clusters share a tile.
// StreamKReduction adds up their accumulators. A cluster processes its range backwards: first the
// tile that the next cluster finishes, last the tile that it finishes itself. A cluster waits for
// earlier clusters, so all clusters must be resident at once. A tile has k_blocks, at least one.
template <typename Tiles>
struct StreamKScheduler : Schedule<StreamKScheduler<Tiles>> {
    using Cluster = typename Tiles::Cluster;
    using Tile = StreamKTile<decltype(static_cast<const Tiles*>(nullptr)->at(0)), Cluster>;

    Tiles tiles;
    int k_blocks;
    int divided;  // number of divided tiles, the first ones
    i64 from;     // remaining range of their blocks for this cluster
    i64 to;
    int index;  // index of the next undivided tile

    __device__ __forceinline__ StreamKScheduler(const Tiles& tiles, int k_blocks)
        : tiles(tiles),
          k_blocks(k_blocks),
          divided(count_divided(tiles.count())),
          from(range_start(Cluster::index())),
          to(range_start(Cluster::index() + 1)),
          index(divided + Cluster::index()) {}

    __device__ __forceinline__ bool done() const { return from == to && index >= tiles.count(); }

    __device__ __forceinline__ void step() {
        if (from == to) {
            index += Cluster::count();
        } else {
            to = max(from, tile_start());
        }
    }

    __device__ __forceinline__ Tile tile() const {
        if (from == to) return {tiles.at(index), KRange(k_blocks), 0, true};
        const i64 start = tile_start();
        const int first = static_cast<int>(max(from, start) - start);
        return {
            tiles.at(static_cast<int>(start / k_blocks)),
            KRange::between(first, static_cast<int>(to - start)),
            Cluster::index() - cluster_of(start), to == start + k_blocks
        };
    }

private:
    // The tiles of a partial last wave, plus the wave before it.
    __device__ __forceinline__ static int count_divided(int tiles) {
        const int last_wave = tiles % Cluster::count();
        return last_wave == 0 || tiles < Cluster::count() ? last_wave
                                                          : last_wave + Cluster::count();
    }

    // The first block of the last tile with remaining blocks.
    __device__ __forceinline__ i64 tile_start() const { return (to - 1) / k_blocks * k_blocks; }

    // The first longer() clusters have shorter() + 1 blocks, the others shorter().
    __device__ __forceinline__ i64 blocks() const { return i64{divided} * k_blocks; }
    __device__ __forceinline__ int shorter() const {
        return static_cast<int>(blocks() / Cluster::count());
    }
    __device__ __forceinline__ int longer() const {
        return static_cast<int>(blocks() % Cluster::count());
    }

    // The first block of a cluster's range, and the cluster whose range contains a block.
    __device__ __forceinline__ i64 range_start(int cluster) const {
        return i64{cluster} * shorter() + min(cluster, longer());
    }
    __device__ __forceinline__ int cluster_of(i64 block) const {
        const i64 ahead = i64{longer()} * (shorter() + 1);
        const i64 after = block < ahead ? block / (shorter() + 1) : (block - ahead) / shorter();
        return static_cast<int>(after) + (block < ahead ? 0 : longer());
    }
};

}  // namespace tmaasync
