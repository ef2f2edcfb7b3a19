// Two warpgroups, one above the other, multiply a tile that two loads bring: whole-tile wgmma with
// several atoms along M and N, and the sums through shared memory to a tile of the output.
//
//   ATile, BTile, CTile   of one load, and of one warpgroup's sums
//   Register              float, u32 or int
//   COLUMNS               of one instruction
//   A_IS_K_MAJOR, B_IS_K_MAJOR, A_IN_REGISTERS
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/types.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

using OperandA = WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>;
using OperandB = WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>;
using OutputC = WgmmaOperand<CTile, Major::kK>;

constexpr int kLoads = 2;
constexpr int kGroups = 2;
constexpr int kGroupRows = OperandA::kExtent / kGroups;
constexpr int kAtomsM = kGroupRows / 64;
constexpr int kAtomsN = OperandB::kExtent / COLUMNS;
constexpr int kRegisters = COLUMNS / 2 / ptx::MmaAccumulators<Register>::per_register();

struct SharedMemory {
    typename ATile::Shared a[kLoads];
    typename BTile::Shared b[kLoads];
    typename CTile::Shared c[kGroups];
    SharedMemBarrier full[kLoads];
};

extern "C" __device__ const int tiles_shared_bytes = sizeof(SharedMemory);

__device__ void load(SharedMemory& shared, const ATile& a, const BTile& b, int index) {
    auto& full = shared.full[index];
    full.expect_bytes(ATile::kBytes + BTile::kBytes);
    const int k = index * OperandA::kDepth;
    const bool a_is_k_major = A_IS_K_MAJOR, b_is_k_major = B_IS_K_MAJOR;
    a.async_copy(shared.a[index], full, {a_is_k_major ? k : 0, a_is_k_major ? 0 : k});
    b.async_copy(shared.b[index], full, {b_is_k_major ? k : 0, b_is_k_major ? 0 : k});
}

using Sums = Register[kAtomsM][kAtomsN][kRegisters];

__device__ void multiply(SharedMemory& shared, Sums& sums, u32 first) {
    shared.full[0].wait(0);
    if constexpr (A_IN_REGISTERS) {
        u32 a[kLoads][kAtomsM][OperandA::kSteps][4];
        load_a_fragments<OperandA>(a[0], shared.a[0], first);
        wgmma_rs<OperandB, typename ATile::Element, 1>(sums, a[0], shared.b[0], false);
        shared.full[1].wait(0);
        load_a_fragments<OperandA>(a[1], shared.a[1], first);
        wgmma_rs<OperandB, typename ATile::Element, 0>(sums, a[1], shared.b[1], true);
    } else {
        wgmma<OperandA, OperandB, 1>(sums, shared.a[0], shared.b[0], false, first);
        shared.full[1].wait(0);
        wgmma<OperandA, OperandB, 0>(sums, shared.a[1], shared.b[1], true, first);
    }
}

__device__ void store(SharedMemory& shared, const Sums& sums, const CTile& c, int group) {
    auto& chunk = shared.c[group];
#pragma unroll
    for (int m = 0; m < kAtomsM; ++m) {
#pragma unroll
        for (int n = 0; n < kAtomsN; ++n) {
            store_accumulators<OutputC, COLUMNS>(chunk, sums[m][n], m * 64, n * COLUMNS);
        }
    }
    fence_async_view_proxy();
    NamedBarrier<128>{1u + group}.sync();
    if (thread_in_warpgroup() == 0) {
        c.async_store(chunk, {0, group * kGroupRows});
        commit_group();
        wait_group_read<0>();
    }
}

extern "C" __global__ void __launch_bounds__(128 * kGroups, 1) tiles(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        for (auto& full : shared.full) full.init(1);
        fence_barrier_init();
        for (int index = 0; index < kLoads; ++index) load(shared, a, b, index);
    }
    __syncthreads();
    const int group = warpgroup_index();
    Sums sums;
    multiply(shared, sums, group * kGroupRows);
    store(shared, sums, c, group);
}
