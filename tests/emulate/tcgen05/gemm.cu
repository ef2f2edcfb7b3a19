#include <tmaasync/ptx/special_registers.cuh>
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_mma.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

// D = A * B^T of bf16, in tiles of 128 x kN: TMA warp 4, MMA warp 5, epilogue warps 0 to 3. The
// accumulators alternate between two halves of tensor memory.
constexpr u32 kStages = 2, kK = 64, kRows = 128;
constexpr u32 kInstruction = 1 << 4 | 1 << 7 | 1 << 10 | kN / 8 << 17 | kRows / 16 << 24;

struct SharedMemory {
    alignas(1024) TileA::Shared a[kStages];
    alignas(1024) TileB::Shared b[kStages];
    SharedMemBarrier full[kStages], empty[kStages], accumulated[2], drained[2];
    u32 tensor;
};
extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

// A matrix descriptor of rows of 128 bytes, swizzled by 128 bytes.
__device__ u64 descriptor_of(const void* tile, u32 bytes) {
    const u64 start = (shared_address(tile) + bytes & 0x3ffff) >> 4;
    return start | u64{1} << 16 | u64{64} << 32 | u64{1} << 46 | u64{2} << 61;
}

__device__ void load(SharedMemory& shared, const TileA& a, const TileB& b, u32 tiles, u32 steps) {
    for (u32 i = 0; i < tiles * steps; ++i) {
        const u32 stage = i % kStages, step = i % steps, tile = i / steps;
        shared.empty[stage].wait((i / kStages & 1) ^ 1);
        shared.full[stage].expect_bytes(TileA::kBytes + TileB::kBytes);
        a.async_copy(shared.a[stage], shared.full[stage], {int(step * kK), int(kRows * tile)});
        b.async_copy(shared.b[stage], shared.full[stage], {int(step * kK), 0});
    }
}

__device__ void multiply(SharedMemory& shared, u32 tiles, u32 steps) {
    for (u32 tile = 0; tile < tiles; ++tile) {
        const u32 half = tile % 2, d = shared.tensor + half * kN;
        shared.drained[half].wait((tile / 2 & 1) ^ 1);
        tcgen05_fence_after_thread_sync();
        for (u32 step = 0; step < steps; ++step) {
            const u32 i = tile * steps + step, stage = i % kStages;
            shared.full[stage].wait(i / kStages & 1);
            tcgen05_fence_after_thread_sync();
            for (u32 k = 0; k < kK / 16; ++k) {
                const u64 a = descriptor_of(&shared.a[stage], k * 32);
                const u64 b = descriptor_of(&shared.b[stage], k * 32);
                const bool accumulates = step > 0 || k > 0;
                tcgen05_mma<Tcgen05Kind::kF16>(d, a, b, kInstruction, accumulates);
            }
            tcgen05_commit(shared.empty[stage].address());
        }
        tcgen05_commit(shared.accumulated[half].address());
    }
}

__device__ void drain(SharedMemory& shared, float* out, u32 tiles) {
    const u32 warp = threadIdx.x / 32;
    for (u32 tile = 0; tile < tiles; ++tile) {
        const u32 half = tile % 2, d = shared.tensor + half * kN;
        shared.accumulated[half].wait(tile / 2 & 1);
        tcgen05_fence_after_thread_sync();
        float* row = out + (tile * kRows + threadIdx.x) * kN;
        for (u32 column = 0; column < kN; column += 32) {
            u32 held[32];
            tcgen05_ld<Tcgen05Shape::k32x32b>(held, d + (warp * 32 << 16) + column);
            tcgen05_wait_ld();
            for (u32 i = 0; i < 32; ++i) row[column + i] = __uint_as_float(held[i]);
        }
        tcgen05_fence_before_thread_sync();
        shared.drained[half].arrive();
    }
}

extern "C" __global__ void gemm(
    const __grid_constant__ TileA a,
    const __grid_constant__ TileB b,
    float* out,
    u32 tiles,
    u32 steps
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < kStages; ++i) {
            shared.full[i].init();
            shared.empty[i].init();
        }
        for (u32 i = 0; i < 2; ++i) {
            shared.accumulated[i].init();
            shared.drained[i].init(128);
        }
        fence_barrier_init();
    }
    if (warp == 0) {
        tcgen05_alloc(shared_address(&shared.tensor), 2 * kN);
        tcgen05_relinquish_alloc_permit();
    }
    __syncthreads();
    if (warp == 4 && elect()) {
        load(shared, a, b, tiles, steps);
    } else if (warp == 5 && elect()) {
        multiply(shared, tiles, steps);
    } else if (warp < 4) {
        drain(shared, out, tiles);
    }
    __syncthreads();
    if (warp == 0) tcgen05_dealloc(shared.tensor, 2 * kN);
}
