#pragma once

#include <tmaasync/structured/schedule.cuh>

namespace tmaasync {

// The static persistent scheduler: cluster i of c takes tiles i, i + c, i + 2 c and so on. Any
// number of clusters covers all tiles.
template <typename Tiles>
struct StaticScheduler : Schedule<StaticScheduler<Tiles>> {
    using Cluster = typename Tiles::Cluster;

    Tiles tiles;
    int index;

    __device__ __forceinline__ explicit StaticScheduler(const Tiles& tiles)
        : tiles(tiles), index(Cluster::index()) {}

    __device__ __forceinline__ bool done() const { return index >= tiles.count(); }
    __device__ __forceinline__ void step() { index += Cluster::count(); }
    __device__ __forceinline__ auto tile() const { return tiles.at(index); }
};

}  // namespace tmaasync
