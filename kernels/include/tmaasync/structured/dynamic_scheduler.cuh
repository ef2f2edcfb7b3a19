#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/gpu.cuh>
#include <tmaasync/structured/schedule.cuh>

namespace tmaasync {

// The dynamic persistent scheduler: a cluster takes its next tile from an atomic tile counter in
// global memory, which is 0 before the first launch. step() takes a tile. So one thread of the
// cluster iterates over the schedule, and passes each `index` to the others, which call
// tiles.at(index). It may step ahead of the computation, which hides the latency of the atomic. It
// must iterate until done().
template <typename Tiles>
struct DynamicScheduler : Schedule<DynamicScheduler<Tiles>> {
    using Cluster = typename Tiles::Cluster;

    Tiles tiles;
    u32* counter;
    int count;  // number of tiles, read once because `tiles` may be in memory
    int index;

    __device__ __forceinline__ DynamicScheduler(const Tiles& tiles, u32* counter)
        : tiles(tiles), counter(counter), count(tiles.count()), index(Cluster::index()) {}

    __device__ __forceinline__ bool done() const { return index >= count; }

    // A cluster makes one request per tile that it computes, so the requests equal the tiles: the
    // last request wraps the counter to 0 for the next launch.
    __device__ __forceinline__ void step() {
        const int first = Cluster::count();
        const u32 others = count > first ? count - first : 0;
        index = first + static_cast<int>(ptx::atom_inc_up_to(counter, count - 1, others));
    }

    __device__ __forceinline__ auto tile() const { return tiles.at(index); }
};

}  // namespace tmaasync
