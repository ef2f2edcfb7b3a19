#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/structured/schedule.cuh>

namespace tmaasync {

// A schedule made on the host: table[wave][cluster] is the index of the tile that a cluster takes
// in a wave; negative after its last tile.
template <typename Tiles>
struct ListScheduler : Schedule<ListScheduler<Tiles>> {
    using Cluster = typename Tiles::Cluster;

    Tiles tiles;
    const i32* table;
    int waves;
    int wave = 0;
    int index;

    __device__ __forceinline__ ListScheduler(const Tiles& tiles, const i32* table, int waves)
        : tiles(tiles), table(table), waves(waves), index(listed()) {}

    __device__ __forceinline__ bool done() const { return index < 0; }
    __device__ __forceinline__ void step() {
        ++wave;
        index = listed();
    }
    __device__ __forceinline__ auto tile() const { return tiles.at(index); }

private:
    __device__ __forceinline__ int listed() const {
        if (wave >= waves) return -1;
        const int tile = table[wave * Cluster::count() + Cluster::index()];
        check(
            tile < tiles.count(), "table[wave][cluster]", tile, "it must be below", tiles.count()
        );
        return tile;
    }
};

}  // namespace tmaasync
