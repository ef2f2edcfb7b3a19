// New here: a warp-specialised pipeline. A producer warp loads, four consumer warps
// compute, and they share STAGES buffers in shared memory. Each stage has two mbarriers:
// `full` completes when a tile has landed, `empty` when all consumers have read it. Loads
// run up to STAGES tiles ahead.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

using State = PipelineState<STAGES>;
constexpr int kRows = Tile::side(0);
constexpr int kColumns = Tile::side(1);
constexpr int kConsumerWarps = kColumns / 32;  // one thread per column
static_assert(kColumns % 32 == 0, "whole warps");
constexpr int kProducerWarp = kConsumerWarps;  // the last one

struct SharedMemory {
    Tile::Shared tiles[STAGES];
    SharedMemBarrier full[STAGES];
    SharedMemBarrier empty[STAGES];
};
extern "C" __device__ const int column_energies_shared_bytes = sizeof(SharedMemory);

__device__ void init_pipeline(SharedMemory& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.full[stage].init(1);                // the producer arrives, with expect_bytes
        shared.empty[stage].init(kConsumerWarps);  // one lane of each consumer warp arrives
    }
    fence_barrier_init();
}

// One thread of the producer warp: wait for an empty stage, expect the bytes, issue the
// load.
__device__ void load_tiles(SharedMemory& shared, const Tile& source, int x, int rows) {
    auto state = State::for_producer();
    for (int y = 0; y < rows; y += kRows, state.step()) {
        shared.empty[state.index].wait(state.phase);  // returns at once for the first STAGES tiles
        shared.full[state.index].expect_bytes(Tile::kBytes);
        source.async_copy(shared.tiles[state.index], shared.full[state.index], {x, y});
    }
}

// A consumer thread: the energy of its column. Rows beyond the last one are zeros.
__device__ float add_squares(SharedMemory& shared, int rows) {
    float energy = 0;
    auto state = State::for_consumer();
    for (int y = 0; y < rows; y += kRows, state.step()) {
        shared.full[state.index].wait(state.phase);
        const float* column = shared.tiles[state.index].data() + threadIdx.x;
        for (int row = 0; row < kRows; ++row) {
            energy += column[row * kColumns] * column[row * kColumns];
        }
        __syncwarp();  // all lanes have read: one arrives for the warp
        if (lane_index() == 0) shared.empty[state.index].arrive();
    }
    return energy;
}

// Each block takes kColumns columns from x on, and all rows.
extern "C" __global__ void column_energies(
    const __grid_constant__ Tile source, float* energies, int rows, int columns
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int x = blockIdx.x * kColumns;
    if (threadIdx.x == 0) init_pipeline(shared);
    __syncthreads();

    if (warp_index() == kProducerWarp) {
        if (elect()) load_tiles(shared, source, x, rows);
    } else {
        const int column = x + threadIdx.x;
        const float energy = add_squares(shared, rows);
        if (column < columns) energies[column] = energy;
    }
}
