// y = scale * x, tile by tile: a producer warp loads through a ring, four consumer warps compute,
// and TMA stores.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kRows = Tile::side(0), kColumns = Tile::side(1);
constexpr int kConsumerWarps = 4, kConsumers = 32 * kConsumerWarps;
using Element = Tile::Element;

struct Stage {
    Tile::Shared x;
};
struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<kConsumerWarps>> ring;
    Tile::Shared y[2];
};
extern "C" __device__ const int my_kernel_shared_bytes = sizeof(SharedMemory);

// Computes one element: write your own.
__device__ Element compute(Element x, float scale) {
    return Element(static_cast<float>(x) * scale);
}

// CTA i takes tiles i, i + gridDim.x, ... of the matrix, in row-major order.
struct Tiles {
    int across, tiles;

    __device__ int count() const { return (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x; }
    __device__ Coordinates<2> at(int iteration) const {
        const int tile = blockIdx.x + iteration * gridDim.x;
        return {tile % across * kColumns, tile / across * kRows};
    }
};

__device__ void produce(SharedMemory& shared, const Tile& x, const Tiles& tiles) {
    auto producer = shared.ring.producer();
    for (auto stage : producer.produce(tiles.count())) {
        x.async_copy(stage->x, stage.full(), tiles.at(stage.iteration()));
    }
}

__device__ void consume(SharedMemory& shared, const Tile& y, const Tiles& tiles, float scale) {
    const NamedBarrier<kConsumers> consumers{1};
    auto consumer = shared.ring.consumer();
    for (auto stage : consumer.consume(tiles.count())) {
        auto& staged = shared.y[stage.iteration() % 2];
        if (threadIdx.x == 0) wait_group_read<1>();  // the store before the last has read `staged`
        consumers.sync();
        for (int i = threadIdx.x; i < Tile::kElements; i += kConsumers) {
            staged.data()[i] = compute(stage->x.data()[i], scale);
        }
        fence_async_view_proxy();  // TMA reads what this thread wrote
        consumers.sync();
        if (threadIdx.x == 0) {
            y.async_store(staged, tiles.at(stage.iteration()));
            commit_group();
        }
    }
    if (threadIdx.x == 0) wait_group_read<0>();  // shared memory is read until then
}

extern "C" __global__ void __launch_bounds__(kConsumers + 32) my_kernel(
    const __grid_constant__ Tile x,
    const __grid_constant__ Tile y,
    int across,
    int tiles,
    float scale
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.ring.init();
    __syncthreads();

    if (warp_index() < kConsumerWarps) {
        consume(shared, y, {across, tiles}, scale);
    } else if (elect()) {
        produce(shared, x, {across, tiles});
    }
}
