// One rank hands memory over to another. The words in capitals are steps; `bug` selects the step
// that goes wrong.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr u32 kProducer = 0, kConsumer = 1;
constexpr u32 kArrived = 0, kFree = 1;  // signals
constexpr int kElements = Tile::side(0) * Tile::side(1);

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int by_tma_shared_bytes = sizeof(SharedMemory);
extern "C" __device__ const int by_threads_shared_bytes = sizeof(SharedMemory);
extern "C" __device__ const int add_shared_bytes = sizeof(SharedMemory);
extern "C" __device__ const int read_shared_bytes = sizeof(SharedMemory);

__device__ u32 relaxed(const volatile u32* word) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ SharedMemory& initialised(int bug) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        FENCE_INIT;
    }
    __syncthreads();
    return shared;
}

__device__ void fill(SharedMemory& shared, float value, int bug) {
    for (int i = threadIdx.x; i < kElements; i += blockDim.x) shared.tile.data()[i] = value;
    FILLED;
}

// Thread 0 waits for the signal; then the block reads the tile by TMA, and lets it go.
__device__ void consume(
    const Signals& signals, const Tile& tile, SharedMemory& shared, u32 round, float* out, int bug
) {
    volatile u32* const flag = signals.pads[kConsumer] + kArrived;
    const u32 epoch = round + 1;
    if (threadIdx.x == 0) {
        WAIT_ARRIVED;
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {0, 0});
        shared.full.wait(round % 2);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kElements; i += blockDim.x) out[i] = shared.tile.data()[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        POST_FREE;
    }
}

// The producer stores the tile into the consumer's memory by TMA.
extern "C" __global__ void by_tma(
    const Signals signals, const TMATensorTileArray<Tile> tiles, float* out, int rounds, int bug
) {
    auto& shared = initialised(bug);
    for (u32 round = 0; round < rounds; ++round) {
        if (signals.rank == kConsumer) {
            consume(signals, tiles[kConsumer], shared, round, out, bug);
            continue;
        }
        volatile u32* const flag = signals.pads[kConsumer] + kArrived;
        const u32 epoch = round + 1;
        fill(shared, 10.f + round, bug);
        if (threadIdx.x == 0) {
            WAIT_FREE;
            tiles[kConsumer].async_store(shared.tile, {0, 0});
            commit_group();
            WAIT_STORE;
            POST;
        }
        __syncthreads();
    }
}

// The producer's threads write the consumer's memory themselves, and it reads by TMA.
extern "C" __global__ void by_threads(
    const Signals signals,
    const TMATensorTileArray<Tile> tiles,
    float* out,
    float* target,
    int rounds,
    int bug
) {
    auto& shared = initialised(bug);
    for (u32 round = 0; round < rounds; ++round) {
        if (signals.rank == kConsumer) {
            consume(signals, tiles[kConsumer], shared, round, out, bug);
            continue;
        }
        volatile u32* const flag = signals.pads[kConsumer] + kArrived;
        const u32 epoch = round + 1;
        if (threadIdx.x == 0) WAIT_FREE;
        BEFORE_WRITING;
        __syncthreads();
        for (int i = threadIdx.x; i < kElements; i += blockDim.x) target[i] = 10.f + round;
        MEET;
        if (threadIdx.x == 0) {
            POST;
        }
    }
}

// Both ranks add to the consumer's tile, which it clears first.
extern "C" __global__ void add(
    const Signals signals, const TMATensorTileArray<Tile> tiles, float* mine, u32* counter, int bug
) {
    auto& shared = initialised(bug);
    fill(shared, 1.f + signals.rank, bug);
    if (signals.rank == kConsumer) {
        for (int i = threadIdx.x; i < kElements; i += blockDim.x) mine[i] = 0;
        ptx::fence_proxy_async_global();
        __syncthreads();
        if (threadIdx.x == 0) signals.post(kProducer, kArrived, 1);
    }
    if (threadIdx.x == 0) {
        if (signals.rank == kProducer) WAIT_CLEARED;
        tiles[kConsumer].async_reduce<ReduceOp::kAdd>(shared.tile, {0, 0});
        commit_group();
        wait_group<0>();
        COUNT;
    }
}

// The consumer pulls the producer's tile. The launch after it overwrites the tile.
extern "C" __global__ void read(
    const Signals signals, const TMATensorTileArray<Tile> tiles, float* out, int bug
) {
    auto& shared = initialised(bug);
    if (threadIdx.x == 0) {
        shared.full.expect_bytes(Tile::kBytes);
        tiles[kProducer].async_copy(shared.tile, shared.full, {0, 0});
        shared.full.wait(0);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kElements; i += blockDim.x) out[i] = shared.tile.data()[i];
    __syncthreads();
    if (threadIdx.x == 0) LEAVE;
}

extern "C" __global__ void overwrite(const Signals signals, float* mine, int bug) {
    if (threadIdx.x == 0) BEFORE_REUSE;
    __syncthreads();
    for (int i = threadIdx.x; i < kElements; i += blockDim.x) mine[i] = -1;
}
