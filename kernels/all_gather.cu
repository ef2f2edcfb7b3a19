// All-gather: every rank stores its rows into the output of every rank, by TMA. One thread per CTA.
// When the kernel ends, all rows have arrived. Any grid covers the shard; all its CTAs are resident
// at once, since they wait for other ranks.
//
//   PushTile, PUSH_STAGES    see gather_round.cuh
//
// target_i has the output of rank i, at the rows of this rank; targets after the last rank are not
// used. They are parameters, so that a launch can name other outputs.
#include "gather_round.cuh"

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
            // Not an array: a descriptor in the parameters is addressed by a constant.
            switch (peer) {
                case 0:
                    return target_0.async_store(tile, at);
                case 1:
                    return target_1.async_store(tile, at);
                case 2:
                    return target_2.async_store(tile, at);
                case 3:
                    return target_3.async_store(tile, at);
                case 4:
                    return target_4.async_store(tile, at);
                case 5:
                    return target_5.async_store(tile, at);
                case 6:
                    return target_6.async_store(tile, at);
                default:
                    return target_7.async_store(tile, at);
            }
        };
    };
    // The output of a rank is free when the rank has entered this round.
    round.push(ring, own, round.epoch, false, [](int, int) { return false; }, store_to);
    round.wait_for_peers(blockIdx.x, gridDim.x);
}
