// New here: several GPUs. Each rank passes tiles on to the next one by TMA stores into its memory,
// and signals order them: post() after the store has arrived, wait() before the load.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kRows = Tile::side(1);

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int sum_over_ranks_shared_bytes = sizeof(SharedMemory);

// One thread per block. In each step a rank adds its current tile to `total`, and stores it to the
// next rank. After `ranks` steps every rank has added every tile. Each step has a slot of its own
// in the inbox, so that nothing is overwritten; a second launch would need new slots and epochs.
extern "C" __global__ void sum_over_ranks(
    const Signals signals,
    const TMATensorTileArray<Tile> inboxes,  // of every rank
    const __grid_constant__ Tile mine,
    const __grid_constant__ Tile total
) {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.full.init(1);
    fence_barrier_init();
    const int row = blockIdx.x * kRows;
    const u32 next = (signals.rank + 1) % signals.ranks;

    shared.full.expect_bytes(Tile::kBytes);
    mine.async_copy(shared.tile, shared.full, {0, row, 0});
    for (u32 step = 0; step < signals.ranks; ++step) {
        shared.full.wait(step % 2);
        const int slot = static_cast<int>(step);
        const bool is_last = step + 1 == signals.ranks;
        total.async_reduce<ReduceOp::kAdd>(shared.tile, {0, row, 0});
        if (!is_last) inboxes[next].async_store(shared.tile, {0, row, slot});
        commit_group();
        wait_group<0>();  // the tile is in the memory of the next rank
        if (is_last) break;
        signals.post(next, blockIdx.x, step + 1);
        signals.wait(blockIdx.x, step + 1);
        shared.full.expect_bytes(Tile::kBytes);
        inboxes[signals.rank].async_copy(shared.tile, shared.full, {0, row, slot});
    }
}
