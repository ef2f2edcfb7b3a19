// New here: Blackwell's tensor cores. One thread multiplies two tiles with tcgen05.mma; the
// accumulators lie in tensor memory, from which each thread loads a row.
#include <tmaasync/tcgen05.cuh>
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// A is M x K with K contiguous; B is K x N with N contiguous.
using OperandA = Tcgen05Operand<ATile, Major::kK>;
using OperandB = Tcgen05Operand<BTile, Major::kMN>;
constexpr int kN = OperandB::kExtent;
constexpr int kColumns = 32;  // that a thread loads at once

struct SharedMemory {
    ATile::Shared a;
    BTile::Shared b;
    CTile::Shared c;
    SharedMemBarrier full;
    SharedMemBarrier multiplied;
    u32 tmem_address;
};
extern "C" __device__ const int multiply_shared_bytes = sizeof(SharedMemory);

// One thread loads the operands, and issues the multiplication when they are there.
__device__ void load_and_multiply(
    SharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const TmemTile<float, kN>& accumulators,
    int row,
    int column
) {
    shared.full.expect_bytes(ATile::kBytes + BTile::kBytes);
    a.async_copy(shared.a, shared.full, {0, row});
    b.async_copy(shared.b, shared.full, {column, 0});
    shared.full.wait(0);
    tcgen05_mma<OperandA, OperandB>(accumulators, shared.a, shared.b, false);
    tcgen05_commit(shared.multiplied);  // arrives when the accumulators are complete
}

// Block (x, y) computes one tile of C = A B. One tile holds all of K.
extern "C" __global__ void __launch_bounds__(128) multiply(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int row = blockIdx.y * OperandA::kExtent, column = blockIdx.x * kN;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        shared.multiplied.init(1);
        fence_barrier_init();
    }
    // kN columns of tensor memory, until the end of the kernel. Synchronises the block.
    const TmemAllocation<kN> tmem(shared.tmem_address);
    const auto accumulators = tmem.tile<float, kN>();
    if (threadIdx.x == 0) load_and_multiply(shared, a, b, accumulators, row, column);

    shared.multiplied.wait(0);
    tcgen05_fence_after_thread_sync();
    for (int first = 0; first < kN; first += kColumns) {
        float values[kColumns];  // of this thread's row
        accumulators.load(values, first);
        tmem_wait_loads();
        for (int i = 0; i < kColumns; i += 4) {
            const int offset = CTile::tile_offset({first + i, static_cast<int>(threadIdx.x)});
            *reinterpret_cast<float4*>(shared.c.bytes + offset) =
                make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
        }
    }
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        c.async_store(shared.c, {column, row});
        commit_group();
        wait_group_read<0>();
    }
}
