// Mistakes with two rings: findings name ring and member, an index where the code knows it.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;
using Tile = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::kNone>;

struct Stage {
    Tile::Shared a, b;
};
struct Pipelines {
    Ring<Stage, 2, ConsumerWarps<4>> ring_k, ring_v;
};
struct SharedMemory {
    Pipelines pipes;
    Tile::Shared out;
};

extern "C" __global__ void written(const __grid_constant__ Tile target, int stage) {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.pipes.ring_v.stages[stage].b.data()[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x != 0) return;
    target.async_store(shared.pipes.ring_v.stages[stage].b, {0, 0});
    commit_group();
    wait_group_read<0>();
}

extern "C" __global__ void unfenced(const __grid_constant__ Tile source) {
    auto& shared = dynamic_shared<SharedMemory>();
    auto& ring = shared.pipes.ring_k;
    if (threadIdx.x == 0) ring.full[1].init(1);
    __syncthreads();
    if (threadIdx.x == 0) {
        ring.full[1].expect_bytes(Tile::kBytes);
        source.async_copy(ring.stages[1].a, ring.full[1], {0, 0});
    }
    ring.full[1].wait(0);
}

extern "C" __global__ void by_all(const __grid_constant__ Tile source) {
    auto& shared = dynamic_shared<SharedMemory>();
    auto& ring = shared.pipes.ring_k;
    if (threadIdx.x == 0) ring.init();
    __syncthreads();
    source.async_copy(ring.stages[0].b, ring.full[0], {0, 0});
    ring.full[0].wait(0);
}

extern "C" __global__ void pending(const __grid_constant__ Tile target) {
    auto& shared = dynamic_shared<SharedMemory>();
    fence_async_view_proxy();
    if (threadIdx.x != 0) return;
    target.async_store(shared.out, {0, 0});
}
