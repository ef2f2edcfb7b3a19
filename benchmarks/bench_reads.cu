// Two ways to read an array once. The data is discarded.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

using StageState = PipelineState<STAGES>;

struct SharedMemory {
    Tile::Shared tiles[STAGES];
    SharedMemBarrier full[STAGES];
};
extern "C" __device__ const int tiles_shared_bytes = sizeof(SharedMemory);

// An array [entries, rows, heads, columns] as attention reads keys: a CTA takes one head of an
// entry after the other, and one thread keeps STAGES tiles of its rows in flight.
extern "C" __global__ void tiles(
    const __grid_constant__ Tile source, int rows, int heads, int entries
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x != 0) return;
    for (auto& full : shared.full) full.init(1);
    fence_barrier_init();

    auto asked = StageState::for_consumer(), landed = StageState::for_consumer();
    int in_flight = 0;
    const auto wait_for_oldest = [&] {
        shared.full[landed.index].wait(landed.phase);
        landed.step();
        --in_flight;
    };
    for (int slice = blockIdx.x; slice < heads * entries; slice += gridDim.x) {
        for (int row = 0; row < rows; row += Tile::side(1)) {
            if (in_flight == STAGES) wait_for_oldest();
            auto& full = shared.full[asked.index];
            full.expect_bytes(Tile::kBytes);
            source.async_copy(
                shared.tiles[asked.index], full, {0, slice % heads, row, slice / heads}
            );
            asked.step();
            ++in_flight;
        }
    }
    while (in_flight > 0) wait_for_oldest();
}

// All of it in order, 16 bytes a thread, eight of them in flight at once. `kept` is written
// for one sum in 2^32, so that the loads are needed.
extern "C" __global__ void loads(const uint4* values, i64 count, u32* kept) {
    constexpr int kAtOnce = 8;
    const i64 step = i64{gridDim.x} * blockDim.x;
    u32 sum = 0;
    for (i64 at = i64{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += kAtOnce * step) {
        uint4 found[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            found[i] = at + i * step < count ? values[at + i * step] : uint4{};
        }
#pragma unroll
        for (const auto& one : found) sum ^= one.x ^ one.y ^ one.z ^ one.w;
    }
    if (sum == 0x12345678) *kept = sum;
}
