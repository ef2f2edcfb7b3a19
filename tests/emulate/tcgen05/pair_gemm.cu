#include <tmaasync/ptx/cp_async_bulk_tensor.cuh>
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_mma.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

// D = A * B^T of bf16 by a pair of CTAs, in a tile of 256 x kN. Each CTA loads its rows of A and
// half of B, and credits the barrier of the even CTA, which alone multiplies. Commits arrive in
// both CTAs. A cluster has one pair or several.
constexpr u32 kStages = 2, kK = 64, kRows = 256;
constexpr u32 kInstruction = 1 << 4 | 1 << 7 | 1 << 10 | kN / 8 << 17 | kRows / 16 << 24;

struct SharedMemory {
    alignas(1024) TileA::Shared a[kStages];
    alignas(1024) TileB::Shared b[kStages];
    SharedMemBarrier full[kStages], empty[kStages], accumulated;
    u32 tensor;
};
extern "C" __device__ const int pair_gemm_shared_bytes = sizeof(SharedMemory);

// The CTAs of this pair.
__device__ u16 pair_mask() {
    return 3 << (block_rank_in_cluster() & ~1u);
}

__device__ u64 descriptor_of(const void* tile, u32 bytes) {
    const u64 start = (shared_address(tile) + bytes & 0x3ffff) >> 4;
    return start | u64{1} << 16 | u64{64} << 32 | u64{1} << 46 | u64{2} << 61;
}

template <typename Tile>
__device__ void load_half(const Tile& tile, typename Tile::Shared& to, u32 full, int k, int row) {
    cp_async_bulk_tensor_load<2, 2>(shared_address(&to), &tile.map, {k, row}, full, 0);
}

__device__ void load(SharedMemory& shared, const TileA& a, const TileB& b, u32 rank, u32 steps) {
    for (u32 step = 0; step < steps; ++step) {
        const u32 stage = step % kStages;
        const u32 full = even_cta_of_pair(shared.full[stage].address());
        shared.empty[stage].wait((step / kStages & 1) ^ 1);
        if (rank == 0) shared.full[stage].expect_bytes(2 * (TileA::kBytes + TileB::kBytes));
        load_half(a, shared.a[stage], full, step * kK, blockIdx.x * kRows / 2);
        load_half(b, shared.b[stage], full, step * kK, rank * kN / 2);
    }
}

__device__ void multiply(SharedMemory& shared, u32 steps) {
    for (u32 step = 0; step < steps; ++step) {
        const u32 stage = step % kStages;
        shared.full[stage].wait(step / kStages & 1);
        for (u32 k = 0; k < kK / 16; ++k) {
            const u64 a = descriptor_of(&shared.a[stage], k * 32);
            const u64 b = descriptor_of(&shared.b[stage], k * 32);
            const bool accumulates = step > 0 || k > 0;
            tcgen05_mma<Tcgen05Kind::kF16, 2>(shared.tensor, a, b, kInstruction, accumulates);
        }
        tcgen05_commit_multicast<2>(shared.empty[stage].address(), pair_mask());
    }
    tcgen05_commit_multicast<2>(shared.accumulated.address(), pair_mask());
}

__device__ void drain(SharedMemory& shared, float* out) {
    const u32 warp = threadIdx.x / 32;
    shared.accumulated.wait(0);
    tcgen05_fence_after_thread_sync();
    float* row = out + (blockIdx.x * kRows / 2 + threadIdx.x) * kN;
    for (u32 column = 0; column < kN; column += 32) {
        u32 held[32];
        tcgen05_ld<Tcgen05Shape::k32x32b>(held, shared.tensor + (warp * 32 << 16) + column);
        tcgen05_wait_ld();
        for (u32 i = 0; i < 32; ++i) row[column + i] = __uint_as_float(held[i]);
    }
}

extern "C" __global__ void pair_gemm(
    const __grid_constant__ TileA a, const __grid_constant__ TileB b, float* out, u32 steps
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 warp = threadIdx.x / 32, rank = block_rank_in_cluster() % 2;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < kStages; ++i) {
            shared.full[i].init();
            shared.empty[i].init();
        }
        shared.accumulated.init();
        fence_barrier_init();
    }
    cluster_sync();
    if (warp == 0) {
        tcgen05_alloc<2>(shared_address(&shared.tensor), kN);
        tcgen05_relinquish_alloc_permit<2>();
    }
    __syncthreads();
    if (warp == 4 && elect()) {
        load(shared, a, b, rank, steps);
    } else if (warp == 5 && rank == 0 && elect()) {
        multiply(shared, steps);
    } else if (warp < 4) {
        drain(shared, out);
    }
    cluster_sync();
    if (warp == 0) tcgen05_dealloc<2>(shared.tensor, kN);
    cluster_sync();
}
