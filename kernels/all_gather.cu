// All-gather: every rank stores its rows into the output of every rank, by TMA. One thread per CTA.
// When the kernel ends, all rows have arrived. Any grid covers the shard; all its CTAs are resident
// at once, since they wait for other ranks.
//
//   PushTile, PUSH_STAGES    see gather_round.cuh
//
// target_i has the output of rank i, at the rows of this rank; targets after the last rank are not
// used.
#include "gather_round.cuh"
#include "rank_tiles.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;

struct SharedMemory {
    PushRing ring;
};
extern "C" __device__ const int all_gather_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(32) all_gather(
    const __grid_constant__ PushTile own,
    const __grid_constant__ PushTile target_0,
    const __grid_constant__ PushTile target_1,
    const __grid_constant__ PushTile target_2,
    const __grid_constant__ PushTile target_3,
    const __grid_constant__ PushTile target_4,
    const __grid_constant__ PushTile target_5,
    const __grid_constant__ PushTile target_6,
    const __grid_constant__ PushTile target_7,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds
) {
    if (!elect()) return;
    auto& ring = dynamic_shared<SharedMemory>().ring;
    ring.init();
    const GatherRound round{signals, shards, enter_round(rounds, blockIdx.x, gridDim.x)};
    if (blockIdx.x == 0) round.enter();
    const auto store_to = [&](int peer) {
        return [&, peer](const auto& tile, const auto& at) {
            const auto store = [&](const PushTile& target) { target.async_store(tile, at); };
            with_tile_of(
                peer, store, target_0, target_1, target_2, target_3, target_4, target_5, target_6,
                target_7
            );
        };
    };
    // The output of a rank is free when the rank has entered this round.
    round.push(ring, own, round.epoch, false, [](int, int) { return false; }, store_to);
    round.wait_for_peers(blockIdx.x, gridDim.x);
}
