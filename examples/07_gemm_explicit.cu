// Underneath step 7: the persistent GEMM, C = A B, with barriers by hand, from steps 2, 3,
// 4 and 6. As many blocks are launched as the GPU runs at once, and each computes several
// tiles of C. The producer runs ahead across tiles: while the consumers store one tile,
// the operands of the next are in flight.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

using State = PipelineState<STAGES>;
using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kMN>;
using Output = WgmmaOperand<CTile, Major::kK>;

constexpr int kM = ATile::side(0);  // the CTA tile of C: kM x kN
constexpr int kN = BTile::side(1);
constexpr int kK = ATile::side(1);  // K of one stage
constexpr int kGroupRows = 64;      // rows of one consumer warpgroup
constexpr int kConsumers = kM / kGroupRows;
constexpr int kConsumerWarps = 4 * kConsumers;
constexpr int kProducerWarp = kConsumerWarps;  // the last one
constexpr int kThreads = 32 * (kConsumerWarps + 1);
static_assert(CTile::side(0) == kGroupRows && CTile::side(1) == kN);

using Accumulators = float[1][1][kN / 2];

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};

struct SharedMemory {
    Stage stages[STAGES];
    CTile::Shared c[kConsumers];
    SharedMemBarrier full[STAGES];
    SharedMemBarrier empty[STAGES];
};
extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

// The static tile scheduler: block i computes tiles i, i + gridDim.x, ... Producer and
// consumers run the same loop. M varies fastest, so neighbouring blocks share a tile of B
// in L2.
struct TileScheduler {
    int tiles_down;
    int tiles;
    int k_blocks;
    int tile;

    __device__ TileScheduler(int m, int n, int k)
        : tiles_down((m + kM - 1) / kM),
          tiles(tiles_down * ((n + kN - 1) / kN)),
          k_blocks((k + kK - 1) / kK),
          tile(blockIdx.x) {}

    __device__ bool done() const { return tile >= tiles; }
    __device__ void step() { tile += gridDim.x; }
    __device__ int row() const { return tile % tiles_down * kM; }
    __device__ int column() const { return tile / tiles_down * kN; }
};

__device__ void init_pipeline(SharedMemory& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.full[stage].init(1);
        shared.empty[stage].init(kConsumerWarps);
    }
    fence_barrier_init();
}

// The producer: fills one stage after another, across tiles.
__device__ void load_tiles(
    SharedMemory& shared, const ATile& a, const BTile& b, TileScheduler scheduler
) {
    auto state = State::for_producer();
    for (; !scheduler.done(); scheduler.step()) {
        for (int block = 0; block < scheduler.k_blocks; ++block, state.step()) {
            auto& stage = shared.stages[state.index];
            auto& full = shared.full[state.index];
            shared.empty[state.index].wait(state.phase);
            full.expect_bytes(sizeof(Stage));
            a.async_copy(stage.a, full, {block * kK, scheduler.row()});
            b.async_copy(stage.b, full, {scheduler.column(), block * kK});
        }
    }
}

// The mainloop of a consumer warpgroup: accumulates its 64 rows over all stages along K.
__device__ void multiply_tile(
    SharedMemory& shared, State& state, Accumulators& accumulators, int group, int k_blocks
) {
    for (int block = 0; block < k_blocks; ++block, state.step()) {
        auto& stage = shared.stages[state.index];
        shared.full[state.index].wait(state.phase);
        // The first stage starts at zero. Returns when wgmma has read the stage.
        wgmma<OperandA, OperandB>(accumulators, stage.a, stage.b, block > 0, group * kGroupRows);
        if (lane_index() == 0) shared.empty[state.index].arrive();
    }
}

// The epilogue. Its store stays in flight; the next tile's epilogue waits for it.
__device__ void store_tile(
    CTile::Shared& staged,
    const CTile& c,
    const Accumulators& accumulators,
    int group,
    int row,
    int column
) {
    const NamedBarrier<128> warpgroup{1u + group};
    const bool leads = thread_in_warpgroup() == 0;
    if (leads) wait_group_read<0>();  // the previous store has read its shared memory
    warpgroup.sync();
    store_accumulators<Output, kN>(staged, accumulators[0][0]);
    fence_async_view_proxy();
    warpgroup.sync();
    if (leads) {
        c.async_store(staged, {column, row + group * kGroupRows});
        commit_group();
    }
}

__device__ void multiply_tiles(
    SharedMemory& shared, const CTile& c, TileScheduler scheduler, int group
) {
    auto state = State::for_consumer();
    for (; !scheduler.done(); scheduler.step()) {
        Accumulators accumulators;
        multiply_tile(shared, state, accumulators, group, scheduler.k_blocks);
        store_tile(shared.c[group], c, accumulators, group, scheduler.row(), scheduler.column());
    }
    if (thread_in_warpgroup() == 0) wait_group_read<0>();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const TileScheduler scheduler(m, n, k);
    if (threadIdx.x == 0) init_pipeline(shared);
    __syncthreads();

    if (warp_index() == kProducerWarp) {
        if (elect()) load_tiles(shared, a, b, scheduler);
    } else {
        multiply_tiles(shared, c, scheduler, warpgroup_index());
    }
}
