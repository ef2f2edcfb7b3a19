#include <tmaasync/barrier.cuh>
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_mma.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
#include <tmaasync/shared.cuh>
#include <tmaasync/warp.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

// O += P * V with P = |Q * K^T| of fp16, as attention has it: four warps make P of S, and put it
// over the first half of S. Operands are core matrices of 8 rows of 16 bytes.
constexpr u32 kKeys = 64, kDepth = 16, kSColumns = kKeys, kO = 64;
constexpr u32 kOfS = 1 << 4 | kKeys / 8 << 17 | 8 << 24;
constexpr u32 kOfO = 1 << 4 | 16 / 8 << 17 | 8 << 24;

struct SharedMemory {
    alignas(1024) u32 q[128 * kDepth / 2], k[kKeys * kDepth / 2], v[16 * kKeys / 2];
    SharedMemBarrier s_done, p_done, o_done;
    u32 tensor;
};
extern "C" __device__ const int chain_shared_bytes = sizeof(SharedMemory);

__device__ u64 descriptor_of(const void* tile, u32 rows, u32 units) {
    const u64 start = (shared_address(tile) + units * rows * 16 & 0x3ffff) >> 4;
    return start | u64{rows} << 16 | u64{8} << 32 | u64{1} << 46;
}

__device__ void multiply(SharedMemory& shared, u32 rounds) {
    const u32 s = shared.tensor, o = s + kO;
    for (u32 round = 0; round < rounds; ++round) {
        const u64 q = descriptor_of(shared.q, 128, 0), k = descriptor_of(shared.k, kKeys, 0);
        tcgen05_mma<Tcgen05Kind::kF16>(s, q, k, kOfS, false);
        tcgen05_commit(shared.s_done.address());
        shared.p_done.wait(round & 1);
        tcgen05_fence_after_thread_sync();
        for (u32 step = 0; step < kKeys / 16; ++step) {
            const u64 v = descriptor_of(shared.v, 16, 2 * step);
            tcgen05_mma<Tcgen05Kind::kF16>(o, s + step * 8, v, kOfO, round > 0 || step > 0);
        }
        tcgen05_commit(shared.o_done.address());
        shared.o_done.wait(round & 1);
        tcgen05_fence_after_thread_sync();
    }
}

__device__ void soften(SharedMemory& shared, u32 rounds) {
    const u32 s = shared.tensor + (threadIdx.x / 32 * 32 << 16);
    for (u32 round = 0; round < rounds; ++round) {
        shared.s_done.wait(round & 1);
        tcgen05_fence_after_thread_sync();
        u32 held[kKeys], packed[kKeys / 2];
        tcgen05_ld<Tcgen05Shape::k32x32b>(held, s);
        tcgen05_wait_ld();
        for (u32 i = 0; i < kKeys / 2; ++i) {
            const __half low = __float2half(fabsf(__uint_as_float(held[2 * i])));
            const __half high = __float2half(fabsf(__uint_as_float(held[2 * i + 1])));
            packed[i] = __half_as_ushort(low) | u32{__half_as_ushort(high)} << 16;
        }
        tcgen05_st<Tcgen05Shape::k32x32b>(s, packed);
        tcgen05_wait_st();
        tcgen05_fence_before_thread_sync();
        shared.p_done.arrive();
    }
}

__device__ void store(SharedMemory& shared, float* out) {
    const u32 o = shared.tensor + kO + (threadIdx.x / 32 * 32 << 16);
    u32 held[16];
    tcgen05_ld<Tcgen05Shape::k32x32b>(held, o);
    tcgen05_wait_ld();
    for (u32 i = 0; i < 16; ++i) out[threadIdx.x * 16 + i] = __uint_as_float(held[i]);
}

extern "C" __global__ void chain(const u32* q, const u32* k, const u32* v, float* out, u32 rounds) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 warp = threadIdx.x / 32;
    for (u32 i = threadIdx.x; i < 128 * kDepth / 2; i += 160) shared.q[i] = q[i];
    for (u32 i = threadIdx.x; i < kKeys * kDepth / 2; i += 160) shared.k[i] = k[i];
    for (u32 i = threadIdx.x; i < 16 * kKeys / 2; i += 160) shared.v[i] = v[i];
    fence_async_view_proxy();
    if (threadIdx.x == 0) {
        shared.s_done.init();
        shared.p_done.init(128);
        shared.o_done.init();
        fence_barrier_init();
    }
    if (warp == 0) tcgen05_alloc(shared_address(&shared.tensor), 128);
    __syncthreads();
    if (warp < 4) {
        soften(shared, rounds);
    } else if (elect()) {
        multiply(shared, rounds);
    }
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    tcgen05_fence_after_thread_sync();
    if (warp < 4) store(shared, out);
    __syncthreads();
    if (warp == 0) tcgen05_dealloc(shared.tensor, 128);
}
