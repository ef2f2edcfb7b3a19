// Every CTA of a cluster sums its rows, and each column's total is added up by one of them.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kCtas = 4, kColumns = 64, kOwn = kColumns / kCtas;

struct SharedMemory {
    float partial[kColumns];
    float total[kOwn];
    SharedMemBarrier pushed;
};
extern "C" __device__ const int combine_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void combine(const float* values, float* totals, int rows) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int rank = block_rank_in_cluster(), next = (rank + 1) % kCtas;
    const int thread = threadIdx.x;
    if (thread == 0) {
        shared.pushed.init(kOwn);
        fence_barrier_init();
    }
    float sum = 0;
    for (int row = rank; row < rows; row += kCtas) sum += values[row * kColumns + thread];
    shared.partial[thread] = sum;
    cluster_sync();
    if (thread < kOwn) {
        float total = 0;
        for (int peer = 0; peer < kCtas; ++peer) {
            total += map_shared_rank(shared.partial, peer)[rank * kOwn + thread];
        }
        *map_shared_rank(&shared.total[thread], next) = total;
        shared.pushed.arrive_cluster(next);
        shared.pushed.wait_acquire<Scope::kCluster>(0);
        totals[(next + kCtas - 2) % kCtas * kOwn + thread] = shared.total[thread];
    }
    cluster_sync();
}
