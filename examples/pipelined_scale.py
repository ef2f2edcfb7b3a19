"""Scale a matrix with a pipeline, on a GPU or the CPU: one warp loads, four scale and store."""

from dataclasses import replace

from tmaasync import Kernel, Pipeline, create_tma_tile
from tmaasync.pipeline import check_protocol

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
except Exception:  # no CuPy, no driver or no device
    import numpy as xp
STAGES = 4
SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
constexpr int kConsumers = 128, kElements = Tile::kBytes / sizeof(float);
struct SharedMemory {
    Tile::Shared tiles[STAGES];
    SharedMemBarrier full[STAGES], empty[STAGES];
};
extern "C" __device__ const int scale_shared_bytes = sizeof(SharedMemory);
__device__ void load_tiles(SharedMemory& shared, const Tile& source, int x, int y, int rows) {
    auto state = PipelineState<STAGES>::for_producer();
    for (; y < rows; y += gridDim.y * Tile::side(0), state.step()) {
        shared.empty[state.index].wait(state.phase);
        shared.full[state.index].expect_bytes(Tile::kBytes);
        source.async_copy(shared.tiles[state.index], shared.full[state.index], {x, y});
    }
}

__device__ void scale_tiles(
    SharedMemory& shared, const Tile& target, int x, int y, int rows, float factor
) {
    const int thread = threadIdx.x - 32;
    auto state = PipelineState<STAGES>::for_consumer();
    for (; y < rows; y += gridDim.y * Tile::side(0), state.step()) {
        auto& tile = shared.tiles[state.index];
        shared.full[state.index].wait(state.phase);
        for (int i = thread; i < kElements; i += kConsumers) tile.data()[i] *= factor;
        fence_async_view_proxy();  // TMA sees the writes of this thread
        NamedBarrier<kConsumers>{1}.sync();
        if (thread != 0) continue;
        target.async_store(tile, {x, y});
        commit_group();
        wait_group_read<1>();  // the previous store has read its stage: release it
        if (state.count > 0) shared.empty[(state.index + STAGES - 1) % STAGES].arrive();
    }
    if (thread == 0) wait_group_read<0>();
}

extern "C" __global__ void scale(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, int rows, float factor
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int x = blockIdx.x * Tile::side(1), y = blockIdx.y * Tile::side(0);
    for (int stage = 0; stage < STAGES && threadIdx.x == 0; ++stage) {
        shared.full[stage].init(1);   // the producer, with expect_bytes
        shared.empty[stage].init(1);  // the thread that stores
    }
    fence_barrier_init(); __syncthreads();
    if (threadIdx.x >= 32) return scale_tiles(shared, target, x, y, rows, factor);
    if (elect()) load_tiles(shared, source, x, y, rows);
}
"""

if __name__ == "__main__":
    x = xp.random.default_rng(0).standard_normal((2500, 1004), dtype=xp.float32)
    y = xp.full_like(x, xp.nan)
    source, target = (create_tma_tile(array, (32, 128)) for array in (x, y))
    protocol = Pipeline(STAGES, tiles={"tile": source}).protocol()
    # Consumers release a stage one step late. Searches all interleavings for a deadlock or a race.
    check_protocol(replace(protocol, reads_in_flight=1, release_lag=1))
    kernel = Kernel(SOURCE, "scale", types={"Tile": source}, constants={"STAGES": STAGES})
    kernel((source.tiles_per_side[1], 8), 160, (source, target, x.shape[0], 2.5))
    if not bool((y == x * xp.float32(2.5)).all()):
        raise SystemExit("the result is wrong")
    where = "GPU" if xp.__name__ == "cupy" else "CPU, as there is no CuPy with a GPU"
    print(f"{x.shape} scaled on the {where}: {STAGES} stages; exact")
