// GEMM on Blackwell's tensor memory: C[M, N] = A[M, K] B[K, N], or a batch of GEMMs, in fp32. A
// thread loads, a thread multiplies, and a warpgroup stores the tile before. Compiled and emulated,
// not run on a chip.
//
//   ATile, BTile    operand tiles, 128 bytes of K deep, 128-byte swizzle. A has 128 rows
//   CTile           128 rows of the output by 128, 64 or 32 bytes of columns
//   STAGES          pipeline stages
//   CTAS            1, or 2: the CTAs of a cluster multiply as a pair, and each has half of BTile's
//                   columns
//   GROUP_M         clusters along M before the next column of tiles: the L2 swizzle
//   A_IS_K_MAJOR, B_IS_K_MAJOR    the contiguous side; if false M and N
//
// Grid: any number of clusters of CTAS CTAs, of 256 threads. At the edges of the arrays TMA fills
// loads with zeros and clips stores.
#include <tmaasync/tensor_memory.cuh>

using namespace tmaasync;

namespace {

using OperandA = Tcgen05Operand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>;
using OperandB = Tcgen05Operand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>;
constexpr int kM = OperandA::kExtent, kN = CTAS * OperandB::kExtent, kK = OperandA::kDepth;
using Cluster = ClusterShape<CTAS>;
// Consumer 0 stores and helper 0 multiplies; few registers are needed.
using Roles = WarpSpecialized<1, RegisterSplit<0, 0>, CTAS>;
using Accumulators = AccumulatorRing<float, kN, 2, CTAS>;
using Output = TmemEpilogue<CTile>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
using OperandRing = Tcgen05Ring<Stage, STAGES, CTAS>;
struct SharedMemory {
    OperandRing ring;
    Output::Shared output;
    Accumulators accumulators;

    __device__ void init() {
        ring.init();
        accumulators.init();
    }
};

template <typename Tile, bool kIsKMajor>
__device__ Coordinates<Tile::kRank> at(int row, int k, int batch) {
    return in_batch<Tile::kRank>(kIsKMajor ? k : row, kIsKMajor ? row : k, batch);
}

}  // namespace

extern "C" __device__ const int gemm_tensor_memory_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm_tensor_memory(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k,
    int batches
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const TmemAllocation<Accumulators::kAllColumns, CTAS> tmem(shared.accumulators.address);
    const auto first = tmem.tile<float, kN>();
    const StaticScheduler schedule(OutputTiles<kM, kN, Cluster, GROUP_M>(m, n, batches));
    const int k_blocks = count_tiles(k, kK);

    const auto load = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            const int column = tile.n + Cluster::rank_m() * OperandB::kExtent;
            for (const auto stage : producer.produce(k_blocks)) {
                const int depth = stage.iteration() * kK;
                const auto a_at = at<ATile, A_IS_K_MAJOR>(tile.m, depth, tile.batch);
                const auto b_at = at<BTile, B_IS_K_MAJOR>(column, depth, tile.batch);
                OperandRing::load(stage, a, stage->a, a_at);
                OperandRing::load(stage, b, stage->b, b_at);
            }
        }
    };
    const auto multiply = [&](int helper) {
        if (helper != 0 || !leads_pair<CTAS>() || !elect()) return;
        set_role("mma");
        auto stages = shared.ring.consumer();
        auto accumulators = shared.accumulators.producer(first);
        for ([[maybe_unused]] const auto tile : schedule) {
            const auto d = accumulators.acquire();
            for (const auto stage : stages.consume(k_blocks)) {
                const bool adds = stage.iteration() > 0;
                tcgen05_mma<OperandA, OperandB, CTAS>(d, stage->a, stage->b, adds);
            }
            accumulators.commit();
        }
    };
    const auto store = [&](int) {
        set_role("epilogue");
        auto accumulators = shared.accumulators.consumer(first);
        Output output(shared.output);
        for (const auto tile : schedule) output.store(accumulators, c, tile);
        output.drain();
    };
    Roles::run_with_helpers(shared, load, multiply, store, a, b, c);
}
