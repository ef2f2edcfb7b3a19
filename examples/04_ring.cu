// New here: a ring. One warp loads, four warps compute, and they meet in a ring of stages. Each
// stage has two barriers: `full` tells the consumers that a tile has landed, `empty` tells the
// producer that all have read it. Loads run ahead, up to STAGES tiles, while the consumers compute.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

using Ring = PipelineState<STAGES>;
constexpr int kRows = Tile::side(0);
constexpr int kColumns = Tile::side(1);
constexpr int kConsumerWarps = kColumns / 32;  // a thread for each column
constexpr int kProducerWarp = kConsumerWarps;  // the last one

struct SharedMemory {
    Tile::Shared tiles[STAGES];
    SharedMemBarrier full[STAGES];
    SharedMemBarrier empty[STAGES];
};
extern "C" __device__ const int column_energies_shared_bytes = sizeof(SharedMemory);

__device__ void open_ring(SharedMemory& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.full[stage].init(1);                // the producer arrives, with expect_bytes
        shared.empty[stage].init(kConsumerWarps);  // one lane of each consumer warp arrives
    }
    fence_barrier_init();
}

// The producer's only thread. Waits for room, announces the bytes, asks for the tile, goes on.
__device__ void load_tiles(SharedMemory& shared, const Tile& source, int x, int rows) {
    auto place = Ring::for_producer();
    for (int y = 0; y < rows; y += kRows, place.step()) {
        shared.empty[place.index].wait(place.phase);  // passes at once on the first lap
        shared.full[place.index].expect_bytes(Tile::kBytes);
        source.async_copy(shared.tiles[place.index], shared.full[place.index], {x, y});
    }
}

// A consumer thread: the sum of squares of its column. Rows below the last one are zeros.
__device__ float add_squares(SharedMemory& shared, int rows) {
    float sum = 0;
    auto place = Ring::for_consumer();
    for (int y = 0; y < rows; y += kRows, place.step()) {
        shared.full[place.index].wait(place.phase);
        const float* column = shared.tiles[place.index].data() + threadIdx.x;
        for (int row = 0; row < kRows; ++row) {
            sum += column[row * kColumns] * column[row * kColumns];
        }
        __syncwarp();  // all lanes have read: one may say so
        if (lane_index() == 0) shared.empty[place.index].arrive();
    }
    return sum;
}

// Each block takes the columns from x on, from the first row to the last.
extern "C" __global__ void column_energies(
    const __grid_constant__ Tile source, float* energies, int rows, int columns
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int x = blockIdx.x * kColumns;
    if (threadIdx.x == 0) open_ring(shared);
    __syncthreads();

    if (warp_index() == kProducerWarp) {
        if (elect()) load_tiles(shared, source, x, rows);
    } else {
        const int column = x + threadIdx.x;
        const float energy = add_squares(shared, rows);
        if (column < columns) energies[column] = energy;
    }
}
