// The sum of every column of a matrix. A producer warp loads tiles through a ring, each consumer
// thread adds up a column, and a TMA reduce-add adds the CTA's part to `out`: several CTAs may
// share the rows of a column.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kRows = Tile::side(0), kColumns = Tile::side(1);
constexpr int kConsumerWarps = kColumns / 32, kConsumers = 32 * kConsumerWarps;
static_assert(kColumns % 32 == 0, "a thread for every column, in whole warps");

struct Stage {
    Tile::Shared x;
};
struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<kConsumerWarps>> ring;
    OutTile::Shared out;
};
extern "C" __device__ const int my_kernel_shared_bytes = sizeof(SharedMemory);

// One term of the sum: write your own. Rows beyond the last one are zeros, which must add nothing.
__device__ float term(float x) {
    return x;
}

// CTA (i, j) takes row tiles j, j + gridDim.y, ... of column tile i.
struct Tiles {
    int down;

    __device__ int count() const { return (down - blockIdx.y + gridDim.y - 1) / gridDim.y; }
    __device__ Coordinates<2> at(int iteration) const {
        const int tile = blockIdx.y + iteration * gridDim.y;
        return {static_cast<int>(blockIdx.x) * kColumns, tile * kRows};
    }
};

__device__ void produce(SharedMemory& shared, const Tile& x, const Tiles& tiles) {
    auto producer = shared.ring.producer();
    for (auto stage : producer.produce(tiles.count())) {
        x.async_copy(stage->x, stage.full(), tiles.at(stage.iteration()));
    }
}

__device__ void consume(SharedMemory& shared, const OutTile& out, const Tiles& tiles) {
    float sum = 0;
    auto consumer = shared.ring.consumer();
    for (auto stage : consumer.consume(tiles.count())) {
        const auto* column = stage->x.data() + threadIdx.x;
        for (int row = 0; row < kRows; ++row) sum += term(column[row * kColumns]);
    }
    shared.out.data()[threadIdx.x] = sum;
    fence_async_view_proxy();  // TMA reads what this thread wrote
    NamedBarrier<kConsumers>{1}.sync();
    if (threadIdx.x != 0) return;
    out.async_reduce<ReduceOp::kAdd>(shared.out, {static_cast<int>(blockIdx.x) * kColumns});
    commit_group();
    wait_group_read<0>();  // shared memory is read until then
}

extern "C" __global__ void __launch_bounds__(kConsumers + 32) my_kernel(
    const __grid_constant__ Tile x, const __grid_constant__ OutTile out, int down
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.ring.init();
    __syncthreads();

    if (warp_index() < kConsumerWarps) {
        consume(shared, out, {down});
    } else if (elect()) {
        produce(shared, x, {down});
    }
}
