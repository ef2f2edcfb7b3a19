#include <tmaasync/barrier.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_mma.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
#include <tmaasync/shared.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

// One instruction of kCtas CTAs. Shared and tensor memory of each CTA are filled from images, and
// its tensor memory is returned. Descriptors count from the start of the shared image. Columns: D
// from 0, A from 256, scale factors of A and B from 384 and 416, sparse metadata from 448.
constexpr u32 kWords = 8192, kColumns = 512;
struct SharedMemory {
    alignas(1024) u32 image[kWords];
    SharedMemBarrier done;
    u32 tensor;
};
extern "C" __device__ const int memory_form_shared_bytes = sizeof(SharedMemory);

// FORM(number, "an instruction") for each.
#define FORM(NUMBER, TEXT)                                                                         \
    if (what == NUMBER) {                                                                          \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %4, 0;\n\t" TEXT "\n\t}" ::"r"(tensor), \
                     "l"(a), "l"(b), "r"(instruction), "r"(accumulates), "r"(of_a),                \
                     "r"(tensor + 384), "r"(tensor + 416), "r"(tensor + 448)                       \
                     : "memory");                                                                  \
    }

extern "C" __global__ void memory_form(
    int what,
    const u32* shared_image,
    const u32* tensor_image,
    u64 a,
    u64 b,
    u32 instruction,
    u32 accumulates,
    u32* out
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 warp = threadIdx.x / 32, rank = block_rank_in_cluster();
    for (u32 i = threadIdx.x; i < kWords; i += 128) {
        shared.image[i] = shared_image[rank * kWords + i];
    }
    fence_async_view_proxy();
    if (threadIdx.x == 0) {
        shared.done.init();
        fence_barrier_init();
    }
    cluster_sync();
    if (warp == 0) tcgen05_alloc<kCtas>(shared_address(&shared.tensor), kColumns);
    __syncthreads();
    const u32 tensor = shared.tensor, of_a = tensor + 256, own = tensor + (warp * 32 << 16);
    const u32 row = (rank * 128 + threadIdx.x) * kColumns;
    for (u32 column = 0; column < kColumns; column += 64) {
        u32 held[64];
        for (u32 i = 0; i < 64; ++i) held[i] = tensor_image[row + column + i];
        tcgen05_st<Tcgen05Shape::k32x32b>(own + column, held);
    }
    tcgen05_wait_st();
    tcgen05_fence_before_thread_sync();
    cluster_sync();
    if (rank == 0 && threadIdx.x == 0) {
        tcgen05_fence_after_thread_sync();
        const u64 start = (shared_address(shared.image) & 0x3ffff) >> 4;
        a += start;
        b += start;
        FORMS
        if (kCtas == 2) {
            tcgen05_commit_multicast<kCtas>(shared.done.address(), 3);
        } else {
            tcgen05_commit<kCtas>(shared.done.address());
        }
    }
    shared.done.wait(0);
    tcgen05_fence_after_thread_sync();
    for (u32 column = 0; column < kColumns; column += 64) {
        u32 loaded[64];
        tcgen05_ld<Tcgen05Shape::k32x32b>(loaded, own + column);
        tcgen05_wait_ld();
        for (u32 i = 0; i < 64; ++i) out[row + column + i] = loaded[i];
    }
    cluster_sync();
    if (warp == 0) {
        tcgen05_relinquish_alloc_permit<kCtas>();
        tcgen05_dealloc<kCtas>(tensor, kColumns);
    }
    cluster_sync();
}
