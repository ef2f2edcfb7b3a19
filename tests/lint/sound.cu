// Kernels without a fault, of the kinds that a hasty rule would report.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;
using Tile = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::kNone>;

struct Buffers {
    Tile::Shared loaded, written;
    float sums[128];
    int next;
    SharedMemBarrier full;
};

__device__ void init(Buffers& shared) {
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
    }
    __syncthreads();
}

// Writes scratch and a flag between the load of a tile and its store, which need no fence.
extern "C" __global__ void scratch(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, float* total
) {
    auto& shared = dynamic_shared<Buffers>();
    init(shared);
    if (threadIdx.x == 0) {
        shared.full.expect_bytes(Tile::kBytes);
        source.async_copy(shared.loaded, shared.full, {0, 0});
    }
    shared.full.wait(0);
    shared.sums[threadIdx.x] = shared.loaded.data()[threadIdx.x];
    if (threadIdx.x == 0) shared.next = 7;
    __syncthreads();
    total[threadIdx.x] = shared.sums[127 - threadIdx.x] + shared.next;
    if (threadIdx.x != 0) return;
    target.async_store(shared.loaded, {0, 0});
    commit_group();
    wait_group_read<0>();
}

// A ring of two tiles: the elected thread waits at the loop's end and once more after it.
extern "C" __global__ void ring(const __grid_constant__ Tile target, int rows) {
    __shared__ Tile::Shared tiles[2];
    const bool stores = elect_one();
    for (int row = 0; row < rows; row += Tile::side(0)) {
        Tile::Shared& tile = tiles[row / Tile::side(0) % 2];
        for (int i = threadIdx.x; i < Tile::kElements; i += blockDim.x) tile.data()[i] = row;
        fence_async_view_proxy();
        __syncthreads();
        if (stores) {
            target.async_store(tile, {0, row});
            commit_group();
            wait_group_read<1>();
        }
        __syncthreads();
    }
    if (stores) wait_group_read<0>();
}

// A map in global memory, acquired; the whole kernel is one thread's.
extern "C" __global__ void one_thread(const Tile* sources) {
    __shared__ Tile::Shared tile;
    __shared__ SharedMemBarrier full;
    full.init();
    fence_barrier_init();
    sources[blockIdx.x].tensormap_fence_acquire();
    full.expect_bytes(Tile::kBytes);
    sources[blockIdx.x].async_copy(tile, full, {0, 0});
    full.wait(0);
}

// A loop under an early return, whose loads go through maps that are picked by number.
struct Maps {
    Tile tiles[4];
};
extern "C" __global__ void picked(const __grid_constant__ Maps maps, int count) {
    auto& shared = dynamic_shared<Buffers>();
    init(shared);
    if (threadIdx.x >= 32 || !elect()) return;
    for (int i = 0; i < count; ++i) {
        if (i % 3 == 1) continue;
        shared.full.expect_bytes(Tile::kBytes);
        maps.tiles[i % 4].async_copy(shared.loaded, shared.full, {0, i * 32});
        shared.full.wait(i % 2);
    }
}

// The writers' fence is in a branch of its own, after a barrier.
extern "C" __global__ void apart(const __grid_constant__ Tile target, const float* values) {
    __shared__ Tile::Shared tile;
    if (threadIdx.x >= 32) tile.data()[threadIdx.x - 32] = values[threadIdx.x];
    __syncthreads();
    if (threadIdx.x >= 32) fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x != 0) return;
    target.async_store(tile, {0, 0});
    commit_group();
    wait_group_read<0>();
}

// A map in constant memory needs no acquire.
__constant__ Tile constant_map;

extern "C" __global__ void constant() {
    auto& shared = dynamic_shared<Buffers>();
    init(shared);
    if (threadIdx.x != 0) return;
    shared.full.expect_bytes(Tile::kBytes);
    constant_map.async_copy(shared.loaded, shared.full, {0, 0});
    shared.full.wait(0);
}

// The storing thread is chosen anew in each round.
extern "C" __global__ void chosen_in_a_loop(const __grid_constant__ Tile target, int rows) {
    __shared__ Tile::Shared tile;
    for (int row = 0; row < rows; row += Tile::side(0)) {
        for (int i = threadIdx.x; i < Tile::kElements; i += blockDim.x) tile.data()[i] = row;
        fence_async_view_proxy();
        __syncthreads();
        if (threadIdx.x == row % blockDim.x) {
            target.async_store(tile, {0, row});
            commit_group();
            wait_group_read<0>();
        }
        __syncthreads();
    }
}
