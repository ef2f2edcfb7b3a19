// New here: the tensor cores. A warpgroup (four warps) multiplies two tiles with wgmma,
// straight from shared memory: TMA wrote them with the swizzle that wgmma reads.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

// How wgmma reads the tiles. A is M x K with K contiguous; B is K x N with N contiguous.
using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kMN>;
// How the accumulators are written to the tile that TMA stores.
using Output = WgmmaOperand<CTile, Major::kK>;
constexpr int kM = OperandA::kExtent;
constexpr int kN = OperandB::kExtent;
static_assert(kM == 64, "a warpgroup multiplies 64 rows at once");

struct SharedMemory {
    ATile::Shared a;
    BTile::Shared b;
    CTile::Shared c;
    SharedMemBarrier full;
};
extern "C" __device__ const int multiply_shared_bytes = sizeof(SharedMemory);

__device__ void load_operands(
    SharedMemory& shared, const ATile& a, const BTile& b, int row, int column
) {
    shared.full.expect_bytes(ATile::kBytes + BTile::kBytes);  // one barrier for both
    a.async_copy(shared.a, shared.full, {0, row});
    b.async_copy(shared.b, shared.full, {column, 0});
}

// Block (x, y) computes one tile of C = A B. One tile holds all of K.
extern "C" __global__ void __launch_bounds__(128) multiply(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int row = blockIdx.y * kM, column = blockIdx.x * kN;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        load_operands(shared, a, b, row, column);
    }
    __syncthreads();
    shared.full.wait(0);

    // 64 x kN accumulators lie in the registers of 128 threads, kN / 2 in each.
    float accumulators[1][1][kN / 2];
    wgmma<OperandA, OperandB>(accumulators, shared.a, shared.b, false);  // false: starts at zero
    store_accumulators<Output, kN>(shared.c, accumulators[0][0]);

    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        c.async_store(shared.c, {column, row});
        commit_group();
        wait_group_read<0>();
    }
}
