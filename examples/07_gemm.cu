// New here: a persistent kernel, C = A B with all of the rungs before. As many blocks are started
// as the GPU runs at once, and each computes tile after tile. The producer does not stop between
// tiles: while the consumers store one, the operands of the next are on their way.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

using Ring = PipelineState<STAGES>;
using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kMN>;
using Output = WgmmaOperand<CTile, Major::kK>;

constexpr int kM = ATile::side(0);  // of the tile of C that a block computes
constexpr int kN = BTile::side(1);
constexpr int kK = ATile::side(1);  // of a stage
constexpr int kGroupRows = 64;      // of a consumer warpgroup
constexpr int kConsumers = kM / kGroupRows;
constexpr int kConsumerWarps = 4 * kConsumers;
constexpr int kProducerWarp = kConsumerWarps;  // the last one
constexpr int kThreads = 32 * (kConsumerWarps + 1);
static_assert(CTile::side(0) == kGroupRows && CTile::side(1) == kN);

using Sums = float[1][1][kN / 2];

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

// The tiles of C that this block computes, one after the other. All roles walk alike.
struct TileWalk {
    int tiles_down;
    int tiles;
    int k_blocks;
    int tile;

    __device__ TileWalk(int m, int n, int k)
        : tiles_down((m + kM - 1) / kM),
          tiles(tiles_down * ((n + kN - 1) / kN)),
          k_blocks((k + kK - 1) / kK),
          tile(blockIdx.x) {}

    __device__ bool done() const { return tile >= tiles; }
    __device__ void step() { tile += gridDim.x; }
    __device__ int row() const { return tile % tiles_down * kM; }
    __device__ int column() const { return tile / tiles_down * kN; }
};

__device__ void open_ring(SharedMemory& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.full[stage].init(1);
        shared.empty[stage].init(kConsumerWarps);
    }
    fence_barrier_init();
}

// The producer: fills stage after stage, across tiles.
__device__ void load_tiles(SharedMemory& shared, const ATile& a, const BTile& b, TileWalk walk) {
    auto place = Ring::for_producer();
    for (; !walk.done(); walk.step()) {
        for (int block = 0; block < walk.k_blocks; ++block, place.step()) {
            auto& stage = shared.stages[place.index];
            auto& full = shared.full[place.index];
            shared.empty[place.index].wait(place.phase);
            full.expect_bytes(sizeof(Stage));
            a.async_copy(stage.a, full, {block * kK, walk.row()});
            b.async_copy(stage.b, full, {walk.column(), block * kK});
        }
    }
}

// A consumer's rows of one tile: adds up the products of all stages along K.
__device__ void multiply_tile(
    SharedMemory& shared, Ring& place, Sums& sums, int group, int k_blocks
) {
    for (int block = 0; block < k_blocks; ++block, place.step()) {
        auto& stage = shared.stages[place.index];
        shared.full[place.index].wait(place.phase);
        // The first product starts the sums. Returns when wgmma has read the stage.
        wgmma<OperandA, OperandB>(sums, stage.a, stage.b, block > 0, group * kGroupRows);
        if (lane_index() == 0) shared.empty[place.index].arrive();
    }
}

// Leaves the store under way; the next tile's waits for it.
__device__ void store_tile(
    CTile::Shared& staged, const CTile& c, const Sums& sums, int group, int row, int column
) {
    const NamedBarrier<128> warpgroup{1u + group};
    const bool leads = thread_in_warpgroup() == 0;
    if (leads) wait_group_read<0>();  // the store of the tile before has read its shared memory
    warpgroup.sync();
    store_accumulators<Output, kN>(staged, sums[0][0]);
    fence_async_view_proxy();
    warpgroup.sync();
    if (leads) {
        c.async_store(staged, {column, row + group * kGroupRows});
        commit_group();
    }
}

__device__ void multiply_tiles(SharedMemory& shared, const CTile& c, TileWalk walk, int group) {
    auto place = Ring::for_consumer();
    for (; !walk.done(); walk.step()) {
        Sums sums;
        multiply_tile(shared, place, sums, group, walk.k_blocks);
        store_tile(shared.c[group], c, sums, group, walk.row(), walk.column());
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
    const TileWalk walk(m, n, k);
    if (threadIdx.x == 0) open_ring(shared);
    __syncthreads();

    if (warp_index() == kProducerWarp) {
        if (elect()) load_tiles(shared, a, b, walk);
    } else {
        multiply_tiles(shared, c, walk, warpgroup_index());
    }
}
