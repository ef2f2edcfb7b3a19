// Loads tiles from one array, shows what lies in shared memory, and stores them into another; how,
// its plans have chosen.
//
//   Source, Target   from plan_copy, for tiles of one shape and layout
//   CLUSTER          CTAs that load the same tile; the first stores it
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kRank = Source::kRank;
constexpr u32 kElements = Source::Tile::kElements;

// Where tiles start, along each dimension, innermost first.
struct Places {
    i32 first[5];
    i32 step[5];
    i32 count[5];
};

struct Shared {
    Source::Shared tile;
    SharedMemBarrier full;
};

extern "C" __device__ const int block_copy_shared_bytes = sizeof(Shared);

__device__ Coordinates<kRank> place_of(const Places& places, u32 tile) {
    Coordinates<kRank> at;
    for (int dim = 0; dim < kRank; ++dim) {
        at.values[dim] =
            places.first[dim] + static_cast<i32>(tile % places.count[dim]) * places.step[dim];
        tile /= places.count[dim];
    }
    return at;
}

// The steps of `copy`, call by call. The barrier is initialised; `load` is the number of its load.
__device__ void load_in_steps(
    Shared& shared, const Source& source, Coordinates<kRank> at, int load
) {
    if constexpr (Source::kIsTma) {
        fence_async_view_proxy();
        sync_receivers<Source>();
        const u32 last_warp = threads_in_block() / 32 - 1;
        if (thread_index<3>() / 32 == last_warp) {
            tma_copy<32>(shared.tile, source, at, shared.full);
        }
        shared.full.wait(load & 1);
    } else if constexpr (Source::kIsCpAsync) {
        __syncthreads();
        async_copy(shared.tile, source, at);
        cp_async_wait<0>();
        fence_async_view_proxy();
        __syncthreads();
    } else {
        copy(shared.tile, source, at);
    }
}

// Stores a tile that nobody has written since it was loaded.
__device__ void store_in_steps(const Target& target, Shared& shared, Coordinates<kRank> at) {
    if constexpr (Target::kIsTma) {
        tma_copy(target, shared.tile, at);
        if (thread_index<3>() == 0) wait_group_read<0>();
        __syncthreads();
    } else {
        copy(target, shared.tile, at);
    }
}

__device__ Source::Element& element(Shared& shared, u32 index) {
    Coordinates<kRank> place;
    for (int dim = 0; dim < kRank; ++dim) {
        place.values[dim] = index % Source::side(kRank - 1 - dim);
        index /= Source::side(kRank - 1 - dim);
    }
    return *reinterpret_cast<Source::Element*>(shared.tile.bytes + Source::tile_offset(place));
}

// The elements of the tile, in the order of the array.
__device__ void show(Source::Element* image, Shared& shared) {
    for (u32 i = thread_index<3>(); i < kElements; i += threads_in_block()) {
        image[i] = element(shared, i);
    }
}

// Turns the tile around.
__device__ void reverse(Shared& shared) {
    for (u32 i = thread_index<3>(); i < kElements / 2; i += threads_in_block()) {
        const auto first = element(shared, i);
        element(shared, i) = element(shared, kElements - 1 - i);
        element(shared, kElements - 1 - i) = first;
    }
}

__device__ void scribble(Shared& shared) {
    for (u32 i = thread_index<3>(); i < Source::kBytes; i += threads_in_block()) {
        shared.tile.bytes[i] = 0xEE;
    }
}

extern "C" __global__ void block_copy(
    const __grid_constant__ Source source,
    const __grid_constant__ Target target,
    const Places loads,
    const Places stores,
    int load_count,
    int store_count,
    int tiles,
    bool in_steps,
    Source::Element* images
) {
    auto& shared = dynamic_shared<Shared>();
    source.prefetch_descriptor();
    target.prefetch_descriptor();
    if (in_steps && thread_index<3>() == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    int load = 0;
    for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER, ++load) {
        const auto from = place_of(loads, tile % load_count);
        if (in_steps) {
            load_in_steps(shared, source, from, load);
        } else {
            copy(shared.tile, source, from);
        }
        const int image = tile * CLUSTER + blockIdx.x % CLUSTER;
        show(images + i64{image} * kElements, shared);

        if (blockIdx.x % CLUSTER != 0 || tile >= store_count) continue;
        const auto to = place_of(stores, tile);
        if (in_steps) {
            store_in_steps(target, shared, to);
        } else {
            __syncthreads();
            reverse(shared);
            copy(target, shared.tile, to);
            scribble(shared);
        }
    }
    if constexpr (Source::kIsMulticast) cluster_sync();
}
