// Whole tiles through shared memory, one a block; the host says which call moves them, by STORES
// whether the tile may be stored, and by REDUCES whether it is reduced.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

enum Operation : u32 { kLoad, kLoadElect, kLoadPrefetched, kStore, kStoreElect, kReduce };
constexpr u32 kIssuer = 5;  // not the lane that would issue by habit

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};

extern "C" __device__ const int tiles_shared_bytes = sizeof(SharedMemory);

__device__ Coordinates<Tile::kRank> coordinates(const i32* places) {
    Coordinates<Tile::kRank> at;
    for (int dim = 0; dim < Tile::kRank; ++dim) {
        at.values[dim] = places[blockIdx.x * Tile::kRank + dim];
    }
    return at;
}

__device__ void load(
    const Tile& tile,
    SharedMemory& shared,
    Coordinates<Tile::kRank> at,
    u32 operation,
    CachePolicy policy
) {
    const bool issues = threadIdx.x == kIssuer;
    if (issues) {
        if (operation == kLoadPrefetched) tile.prefetch(at, policy);
        shared.full.expect_bytes(Tile::kBytes);
    }
    if (operation == kLoadElect) {
        tile.async_copy_elect(shared.tile, shared.full, at, issues, policy);
    } else if (issues) {
        tile.async_copy(shared.tile, shared.full, at, policy);
    }
    shared.full.wait(0);
}

template <int kOp, typename StoredTile>
__device__ void reduce(
    const StoredTile& tile,
    SharedMemory& shared,
    Coordinates<Tile::kRank> at,
    u32 op,
    CachePolicy policy
) {
    if constexpr (kOp <= static_cast<int>(ReduceOp::kXor)) {
        if (op != kOp) return reduce<kOp + 1>(tile, shared, at, op, policy);
        constexpr auto kKind = static_cast<ReduceOp>(kOp);
        tile.template async_reduce_elect<kKind>(shared.tile, at, threadIdx.x == kIssuer, policy);
    }
}

template <bool kReduces, typename StoredTile>
__device__ void store(
    const StoredTile& tile,
    SharedMemory& shared,
    Coordinates<Tile::kRank> at,
    u32 operation,
    u32 op,
    CachePolicy policy
) {
    const bool issues = threadIdx.x == kIssuer;
    if constexpr (kReduces) {
        reduce<0>(tile, shared, at, op, policy);
    } else if (operation == kStoreElect) {
        tile.async_store_elect(shared.tile, at, issues, policy);
    } else if (issues) {
        tile.async_store(shared.tile, at, policy);
    }
    if (issues) {
        commit_group();
        wait_group_read<0>();
        wait_group<0>();
    }
}

template <bool kStores, bool kReduces, typename AnyTile, typename... Others>
__device__ void store_if(const AnyTile& tile, Others&... others) {
    if constexpr (kStores) store<kReduces>(tile, others...);
}

// `places` are where the tiles start, innermost first; `images` what shared memory holds before a
// store, or held after a load.
extern "C" __global__ void tiles(
    const __grid_constant__ Tile tile,
    const i32* places,
    unsigned char* images,
    u32 operation,
    u32 op,
    u64 policy
) {
    auto& shared = dynamic_shared<SharedMemory>();
    unsigned char* image = images + static_cast<u64>(blockIdx.x) * Tile::kBytes;
    const auto at = coordinates(places);
    const auto cache = static_cast<CachePolicy>(policy);
    if (threadIdx.x == 0) {
        tile.prefetch_descriptor();
        shared.full.init();
        fence_barrier_init();
    }
    if (operation >= kStore) {
        for (int i = threadIdx.x; i < Tile::kBytes; i += blockDim.x) {
            shared.tile.bytes[i] = image[i];
        }
        fence_async_view_proxy();
    }
    __syncthreads();
    if (operation >= kStore) {
        store_if<STORES, REDUCES>(tile, shared, at, operation, op, cache);
        return;
    }
    load(tile, shared, at, operation, cache);
    for (int i = threadIdx.x; i < Tile::kBytes; i += blockDim.x) image[i] = shared.tile.bytes[i];
}
