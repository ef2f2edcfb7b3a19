#include <tmaasync/barrier.cuh>
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_cp.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_mma.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
#include <tmaasync/shared.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

// One tcgen05.mma. `image` is copied to shared memory; descriptors and offsets count from its
// start. Columns 0 to 255 hold D, those from 256 on A and the scale factors of A, and from 384 on
// of B.
struct SharedMemory {
    alignas(1024) u32 image[16384];
    SharedMemBarrier done;
    u32 tensor;
};
extern "C" __device__ const int form_shared_bytes = sizeof(SharedMemory);

using K = Tcgen05Kind;

struct Operands {
    u32 d, in_a, in_b;
    u64 a, b;
    u32 instruction;
    bool accumulates;
};

__device__ void multiply(int what, const Operands& o) {
    const u32 disabled[4] = {0, 0xffff, 0, 1};
    if (what == 0) tcgen05_mma<K::kF16>(o.d, o.a, o.b, o.instruction, o.accumulates);
    if (what == 1) tcgen05_mma<K::kTF32>(o.d, o.a, o.b, o.instruction, o.accumulates);
    if (what == 2) tcgen05_mma<K::kF8F6F4>(o.d, o.a, o.b, o.instruction, o.accumulates);
    if (what == 3) tcgen05_mma<K::kI8>(o.d, o.a, o.b, o.instruction, o.accumulates);
    if (what == 4) tcgen05_mma_ws<K::kF16>(o.d, o.a, o.b, o.instruction, o.accumulates);
    if (what == 5) tcgen05_mma<K::kF16>(o.d, o.in_a, o.b, o.instruction, o.accumulates);
    if (what == 6) {
        tcgen05_mma_block_scale<K::kMXF8F6F4>(
            o.d, o.a, o.b, o.instruction, o.in_a, o.in_b, o.accumulates
        );
    }
    if (what == 7) {
        tcgen05_mma_block_scale<K::kMXF4>(
            o.d, o.a, o.b, o.instruction, o.in_a, o.in_b, o.accumulates
        );
    }
    if (what == 8) {
        tcgen05_mma_block_scale<K::kMXF4NVF4>(
            o.d, o.a, o.b, o.instruction, o.in_a, o.in_b, o.accumulates
        );
    }
    if (what == 9) tcgen05_mma<K::kF16>(o.d, o.a, o.b, o.instruction, o.accumulates, disabled);
    if (what == 10) tcgen05_mma<K::kF16, 1, 3>(o.d, o.a, o.b, o.instruction, o.accumulates);
    if (what == 11) tcgen05_mma_ws<K::kF16>(o.d, o.in_a, o.b, o.instruction, o.accumulates);
}

extern "C" __global__ void form(
    int what,
    const u32* image,
    u64 a,
    u64 b,
    u32 instruction,
    u64 a_scales,
    u64 b_scales,
    u32 fill,
    u32* out
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 warp = threadIdx.x / 32;
    for (u32 i = threadIdx.x; i < 16384; i += 128) shared.image[i] = image[i];
    fence_async_view_proxy();
    if (threadIdx.x == 0) {
        shared.done.init();
        fence_barrier_init();
    }
    if (warp == 0) tcgen05_alloc(shared_address(&shared.tensor), 512);
    __syncthreads();
    const u32 tensor = shared.tensor, own = tensor + (warp * 32 << 16);
    for (u32 column = 0; column < 256; column += 64) {
        u32 held[64];
        for (u32 i = 0; i < 64; ++i) held[i] = fill;
        tcgen05_st<Tcgen05Shape::k32x32b>(own + column, held);
    }
    // A in tensor memory: eight words of each lane.
    u32 held[8];
    for (u32 i = 0; i < 8; ++i) held[i] = image[threadIdx.x * 8 + i];
    if (what == 5 || what == 11) tcgen05_st<Tcgen05Shape::k32x32b>(own + 256, held);
    tcgen05_wait_st();
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (threadIdx.x == 0) {
        tcgen05_fence_after_thread_sync();
        const u64 start = (shared_address(shared.image) & 0x3ffff) >> 4;
        if (a_scales) {
            tcgen05_cp<Tcgen05Copy::k32x128bWarpx4>(tensor + 256, a_scales + start);
            tcgen05_cp<Tcgen05Copy::k32x128bWarpx4>(tensor + 384, b_scales + start);
        }
        multiply(
            what, {tensor, tensor + 256, tensor + 384, a + start, b + start, instruction, fill != 0}
        );
        tcgen05_commit(shared.done.address());
    }
    shared.done.wait(0);
    tcgen05_fence_after_thread_sync();
    for (u32 column = 0; column < 256; column += 64) {
        u32 loaded[64];
        tcgen05_ld<Tcgen05Shape::k32x32b>(loaded, own + column);
        tcgen05_wait_ld();
        for (u32 i = 0; i < 64; ++i) out[threadIdx.x * 256 + column + i] = loaded[i];
    }
    __syncthreads();
    if (warp == 0) tcgen05_dealloc(tensor, 512);
}
