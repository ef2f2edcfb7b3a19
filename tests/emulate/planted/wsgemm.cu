// A GEMM of one tile: a producer warpgroup loads, two consumers multiply 64 rows each with wgmma.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

constexpr int kStages = 2, kK = ATile::side(1), kN = BTile::side(0);
using State = PipelineState<kStages>;
using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kK>;
using Output = WgmmaOperand<CTile, Major::kK>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory {
    Stage stages[kStages];
    CTile::Shared c[2];
    SharedMemBarrier full[kStages];
    SharedMemBarrier empty[kStages];
};
extern "C" __device__ const int wsgemm_shared_bytes = sizeof(SharedMemory);

__device__ void produce(SharedMemory& shared, const ATile& a, const BTile& b, int k_blocks) {
    auto state = State::for_producer();
    for (int block = 0; block < k_blocks; ++block, state.step()) {
        auto& stage = shared.stages[state.index];
        auto& full = shared.full[state.index];
        shared.empty[state.index].wait(state.phase);
        full.expect_bytes(sizeof(Stage));
        a.async_copy(stage.a, full, {block * kK, 0});
        b.async_copy(stage.b, full, {block * kK, 0});
    }
}

__device__ void multiply(SharedMemory& shared, const CTile& c, int group, int k_blocks) {
    const NamedBarrier<128> warpgroup{1u + group};
    auto state = State::for_consumer();
    float sums[1][1][kN / 2];
    for (int block = 0; block < k_blocks; ++block) {
        auto& stage = shared.stages[state.index];
        shared.full[state.index].wait(state.phase);
        wgmma_fence();
        wgmma_tile<OperandA, OperandB>(
            sums[0][0], OperandA::descriptor(stage.a, group * 64), OperandB::descriptor(stage.b, 0),
            block > 0
        );
        wgmma_commit_group();
        wgmma_wait_group<0>();
        shared.empty[state.index].arrive();
        state.step();
    }
    store_accumulators<Output, kN>(shared.c[group], sums[0][0]);
    fence_async_view_proxy();
    warpgroup.sync();
    if (threadIdx.x % 128 == 0) {
        c.async_store(shared.c[group], {0, group * 64});
        commit_group();
        wait_group<0>();
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) wsgemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int k_blocks
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            shared.full[stage].init(1);
            shared.empty[stage].init(256);
        }
        fence_barrier_init();
    }
    __syncthreads();
    if (warpgroup_index() == 0) {
        release_registers<40>();
        if (threadIdx.x == 0) produce(shared, a, b, k_blocks);
    } else {
        claim_registers<232>();
        multiply(shared, c, warpgroup_index() - 1, k_blocks);
    }
}
