#include <tmaasync/barrier.cuh>
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_cp.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
#include <tmaasync/shared.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

// One tcgen05.cp or shift; then all lanes of 32 columns.
struct SharedMemory {
    alignas(1024) u32 image[1024];
    SharedMemBarrier done;
    u32 tensor;
};
extern "C" __device__ const int moved_shared_bytes = sizeof(SharedMemory);

using C = Tcgen05Copy;
using F = Tcgen05Format;

__device__ void move(int what, u32 to, u64 from) {
    if (what == 0) tcgen05_cp<C::k128x256b>(to, from);
    if (what == 1) tcgen05_cp<C::k128x128b>(to, from);
    if (what == 2) tcgen05_cp<C::k64x128bWarpx2_02_13>(to, from);
    if (what == 3) tcgen05_cp<C::k64x128bWarpx2_01_23>(to, from);
    if (what == 4) tcgen05_cp<C::k32x128bWarpx4>(to, from);
    if (what == 5) tcgen05_cp<C::k4x256b>(to, from);
    if (what == 6) tcgen05_cp<C::k128x128b, 1, F::kB4x16P64>(to, from);
    if (what == 7) tcgen05_cp<C::k128x128b, 1, F::kB6x16P32>(to, from);
    if (what == 8) tcgen05_shift_down(to);
}

extern "C" __global__ void moved(int what, const u32* image, u64 from, u32* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 warp = threadIdx.x / 32;
    for (u32 i = threadIdx.x; i < 1024; i += 128) shared.image[i] = image[i];
    fence_async_view_proxy();
    if (threadIdx.x == 0) {
        shared.done.init();
        fence_barrier_init();
    }
    if (warp == 0) tcgen05_alloc(shared_address(&shared.tensor), 32);
    __syncthreads();
    const u32 tensor = shared.tensor, own = tensor + (warp * 32 << 16);
    u32 held[32];
    for (u32 i = 0; i < 32; ++i) held[i] = threadIdx.x * 32 + i;
    tcgen05_st<Tcgen05Shape::k32x32b>(own, held);
    tcgen05_wait_st();
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (threadIdx.x == 0) {
        tcgen05_fence_after_thread_sync();
        move(what, tensor + 4, from + ((shared_address(shared.image) & 0x3ffff) >> 4));
        tcgen05_commit(shared.done.address());
    }
    shared.done.wait(0);
    tcgen05_fence_after_thread_sync();
    tcgen05_ld<Tcgen05Shape::k32x32b>(held, own);
    tcgen05_wait_ld();
    for (u32 i = 0; i < 32; ++i) out[threadIdx.x * 32 + i] = held[i];
    __syncthreads();
    if (warp == 0) tcgen05_dealloc(tensor, 32);
}
