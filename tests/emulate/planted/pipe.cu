// A pipeline by hand: one thread loads tiles, 128 threads double them, and TMA stores them.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kStages = 3, kConsumers = 128;
using State = PipelineState<kStages>;

struct SharedMemory {
    Tile::Shared in[kStages];
    Tile::Shared out[2];
    SharedMemBarrier full[kStages];
    SharedMemBarrier empty[kStages];
};
extern "C" __device__ const int pipe_shared_bytes = sizeof(SharedMemory);

__device__ void produce(SharedMemory& shared, const Tile& source, int tiles) {
    auto state = State::for_producer();
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, state.step()) {
        auto& full = shared.full[state.index];
        shared.empty[state.index].wait(state.phase);
        full.expect_bytes(Tile::kBytes);
        source.async_copy(shared.in[state.index], full, {0, tile * Tile::side(0)});
    }
}

__device__ void consume(SharedMemory& shared, const Tile& target, int tiles) {
    const NamedBarrier<kConsumers> consumers{1};
    const bool leads = threadIdx.x == 0;
    auto state = State::for_consumer();
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, state.step()) {
        auto& in = shared.in[state.index];
        auto& out = shared.out[state.count % 2];
        if (leads) wait_group_read<1>();
        consumers.sync();
        shared.full[state.index].wait(state.phase);
        for (int i = threadIdx.x; i < Tile::kElements; i += kConsumers) {
            out.data()[i] = 2 * in.data()[i];
        }
        shared.empty[state.index].arrive();
        fence_async_view_proxy();
        consumers.sync();
        if (leads) {
            target.async_store(out, {0, tile * Tile::side(0)});
            commit_group();
        }
    }
    if (leads) wait_group<0>();
}

extern "C" __global__ void __launch_bounds__(kConsumers + 32) pipe(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, int tiles
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            shared.full[stage].init(1);
            shared.empty[stage].init(kConsumers);
        }
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < kConsumers) {
        consume(shared, target, tiles);
    } else if (elect()) {
        produce(shared, source, tiles);
    }
}
