// Kernels of several ranks: what they move, and by which signals they order it.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int pull_shared_bytes = sizeof(SharedMemory);
extern "C" __device__ const int push_shared_bytes = sizeof(SharedMemory);
extern "C" __device__ const int shift_shared_bytes = sizeof(SharedMemory);

__device__ void load(SharedMemory& shared, const Tile& source, int row, u32 phase) {
    shared.full.expect_bytes(Tile::kBytes);
    source.async_copy(shared.tile, shared.full, {0, row});
    shared.full.wait(phase);
}

__device__ SharedMemory& initialised() {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.full.init(1);
    fence_barrier_init();
    return shared;
}

// One thread a block copies a tile of a rank's rows to `target`.
extern "C" __global__ void pull(
    const TMATensorTileArray<Tile> sources, const __grid_constant__ Tile target, int from
) {
    auto& shared = initialised();
    const int row = blockIdx.x * Tile::side(0);
    load(shared, sources[from], row, 0);
    target.async_store(shared.tile, {0, row});
    commit_group();
    wait_group<0>();
}

// One thread a block stores or adds a tile to the rows of a rank.
extern "C" __global__ void push(
    const __grid_constant__ Tile source, const TMATensorTileArray<Tile> targets, int to, bool adds
) {
    auto& shared = initialised();
    const int row = blockIdx.x * Tile::side(0);
    load(shared, source, row, 0);
    if (adds) {
        targets[to].async_reduce<ReduceOp::kAdd>(shared.tile, {0, row});
    } else {
        targets[to].async_store(shared.tile, {0, row});
    }
    commit_group();
    wait_group<0>();
}

// Every rank passes what it has to the next one, `rounds` times. One thread a block; it has two
// signals: "your tile has arrived", and "the next rank's tile may be overwritten".
extern "C" __global__ void shift(
    const Signals signals, const TMATensorTileArray<Tile> tiles, u32 first_epoch, int rounds
) {
    auto& shared = initialised();
    const u32 next = (signals.rank + 1) % signals.ranks;
    const u32 before = (signals.rank + signals.ranks - 1) % signals.ranks;
    const u32 arrived = 2 * blockIdx.x, free = arrived + 1;
    const int row = blockIdx.x * Tile::side(0);
    for (u32 round = 0; round < rounds; ++round) {
        const u32 epoch = first_epoch + round;
        load(shared, tiles[signals.rank], row, round % 2);
        signals.post(before, free, epoch);  // it has been read
        signals.wait(free, epoch);
        tiles[next].async_store(shared.tile, {0, row});
        commit_group();
        wait_group<0>();
        signals.post(next, arrived, epoch);
        signals.wait(arrived, epoch);
    }
}

// Every block of each rank writes its number where the block of the next rank reads it, between
// barriers over the ranks.
extern "C" __global__ void barriers(
    const Signals signals, int* mine, int* of_next, u32 first_epoch, int rounds, int* wrong
) {
    const u32 before = (signals.rank + signals.ranks - 1) % signals.ranks;
    const u32 first = blockIdx.x * signals.ranks;
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    for (u32 round = 0; round < rounds; ++round) {
        of_next[at] = 1000 * signals.rank + round;
        signals.sync_ranks(first, first_epoch + 2 * round);
        if (mine[at] != 1000 * before + round) atomicAdd(wrong, 1);
        signals.sync_ranks(first, first_epoch + 2 * round + 1);
    }
}

// Waits for what nobody posts, or for what a stream posts.
extern "C" __global__ void wait_for(const Signals signals, u32 signal, u32 epoch, int* done) {
    signals.wait(signal, epoch);
    *done = 1;
}

extern "C" __global__ void post_to(const Signals signals, u32 to, u32 signal, u32 epoch) {
    signals.post(to, signal, epoch);
}
