// Two warps meet in rounds, and a path with a defect needs one outcome of each round.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kRounds = 8;

enum class Contest { kExchange, kTicket, kCompare, kFlag };

// True if the warp comes first, or in kFlag if it sees that the other came first.
template <Contest contest>
__device__ bool comes_first(int* word, int warp) {
    if constexpr (contest == Contest::kExchange) return atomicExch(word, 1) == 0;
    if constexpr (contest == Contest::kTicket) return atomicAdd(word, 1) == 0;
    if constexpr (contest == Contest::kCompare) return atomicCAS(word, 0, warp + 1) == 0;
    volatile int* flag = word;
    if (warp == 1) return *flag == 0;
    *flag = 1;
    return false;
}

__device__ void go_wrong(int defect, int warp, int lane, const int* source, int* target) {
    __shared__ SharedMemBarrier barrier, other;
    __shared__ alignas(128) int data[32];
    if (warp == 0 && lane == 0) {
        barrier.init(2);
        other.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    switch (defect) {
        case 0:  // an arrival is missing
            if (lane == 0 && warp == 0) barrier.arrive();
            return barrier.wait(0);
        case 1:  // an arrival too many
            if (lane == 0) barrier.arrive(), barrier.arrive();
            return barrier.wait(0);
        case 2:  // a wait for the next phase
            if (lane == 0) barrier.arrive();
            return barrier.wait(1 - warp);
        case 3:  // a read without an order
            if (warp == 0) data[lane] = lane;
            if (warp == 1) target[lane] = data[lane];
            return;
        case 4:  // a warp is missing at a named barrier
            if (warp == 0) ptx::barrier_sync(1, 64);
            return;
        case 5:  // more bytes land than are expected
            if (warp || lane) return;
            other.expect_bytes(64);
            tma_load_1d(source, other, data, 128);
            return other.wait(0);
        case 6:  // a load is in flight at the end
            if (warp || lane) return;
            other.expect_bytes(128);
            return tma_load_1d(source, other, data, 128);
        case 7:  // a read before the load has landed
            if (warp) return;
            if (lane == 0) other.expect_bytes(128), tma_load_1d(source, other, data, 128);
            __syncwarp();
            target[lane] = data[lane];
            return other.wait(0);
        case 8:  // no proxy fence before a store
            if (warp) return;
            data[lane] = lane;
            __syncwarp();
            if (lane) return;
            tma_store_1d(target, data, 128);
            commit_group();
            return wait_group<0>();
        default:  // an initialisation without an end
            if (lane == 0 && warp == 0) barrier.init(1);
    }
}

template <Contest contest>
__device__ void contend(int* words, const int* source, int* target, int wanted, int defect) {
    __shared__ int first;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int outcome = 0;
    for (int round = 0; round < kRounds; ++round) {
        if (threadIdx.x == 0) first = 0;
        __syncthreads();
        if (lane == 0 && comes_first<contest>(&words[round], warp)) first = warp + 1;
        __syncthreads();
        outcome |= (first == 2) << round;
        __syncthreads();
    }
    if (outcome == wanted) go_wrong(defect, warp, lane, source, target);
}

extern "C" __global__ void contest(
    int* words, const int* source, int* target, int kind, int wanted, int defect
) {
    switch (kind) {
        case 0:
            return contend<Contest::kExchange>(words, source, target, wanted, defect);
        case 1:
            return contend<Contest::kTicket>(words, source, target, wanted, defect);
        case 2:
            return contend<Contest::kCompare>(words, source, target, wanted, defect);
        default:
            return contend<Contest::kFlag>(words, source, target, wanted, defect);
    }
}
