// Each CTA of a cluster loads its half of a tile for both, and both add up all of it.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kCtas = 2, kStages = 2, kThreads = 64;
using State = PipelineState<kStages>;

struct Stage {
    Half::Shared halves[kCtas];
};
struct SharedMemory {
    Stage stages[kStages];
    SharedMemBarrier full[kStages];
    SharedMemBarrier empty[kStages];
};
extern "C" __device__ const int share_shared_bytes = sizeof(SharedMemory);

__device__ void load(SharedMemory& shared, const Half& source, State state, int tile) {
    const u32 rank = block_rank_in_cluster();
    auto& full = shared.full[state.index];
    shared.empty[state.index].wait_acquire<Scope::kCluster>(state.phase);
    full.expect_bytes(sizeof(Stage));
    const int row = (tile * kCtas + rank) * Half::side(0);
    source.async_multicast_load(shared.stages[state.index].halves[rank], full, {0, row}, 0b11);
}

extern "C" __global__ void share(const __grid_constant__ Half source, float* sums, int tiles) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            shared.full[stage].init(1);
            shared.empty[stage].init(kCtas * kThreads);
        }
        fence_barrier_init();
    }
    cluster_sync();
    auto consumer = State::for_consumer();
    auto producer = State::for_producer();
    float sum = 0;
    if (threadIdx.x == 0) load(shared, source, producer, 0);
    for (int tile = 0; tile < tiles; ++tile, consumer.step()) {
        producer.step();
        if (threadIdx.x == 0 && tile + 1 < tiles) load(shared, source, producer, tile + 1);
        shared.full[consumer.index].wait(consumer.phase);
        const auto& stage = shared.stages[consumer.index];
        for (int half = 0; half < kCtas; ++half) {
            for (int i = threadIdx.x; i < Half::kElements; i += kThreads) {
                sum += stage.halves[half].data()[i];
            }
        }
        for (int rank = 0; rank < kCtas; ++rank) shared.empty[consumer.index].arrive_cluster(rank);
    }
    atomicAdd(&sums[blockIdx.x], sum);
    cluster_sync();
}
