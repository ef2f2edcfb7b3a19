// All-gather around a cluster: each CTA pushes what it received last to its right neighbour.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kCtas = 4, kElements = 64;

struct SharedMemory {
    alignas(128) float parts[kCtas][kElements];
    SharedMemBarrier received[kCtas];
};
extern "C" __device__ const int gather_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void gather(const float* values, float* gathered) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int rank = block_rank_in_cluster(), thread = threadIdx.x;
    const int right = (rank + 1) % kCtas;
    if (thread == 0) {
        for (auto& barrier : shared.received) barrier.init(1);
        fence_barrier_init();
        for (int part = 0; part < kCtas; ++part) {
            if (part != rank) shared.received[part].expect_bytes(sizeof(shared.parts[part]));
        }
    }
    shared.parts[rank][thread] = values[rank * kElements + thread];
    fence_async_view_proxy();
    cluster_sync();
    for (int step = 0; step < kCtas - 1; ++step) {
        auto& part = shared.parts[(rank + kCtas - step) % kCtas];
        auto& received = shared.received[(rank + kCtas - step) % kCtas];
        if (step > 0) received.wait(0);
        if (thread == 0) tma_store_cluster(part, received, part, sizeof(part), right);
    }
    shared.received[right].wait(0);
    for (int part = 0; part < kCtas; ++part) {
        gathered[(rank * kCtas + part) * kElements + thread] = shared.parts[part][thread];
    }
    cluster_sync();
}
