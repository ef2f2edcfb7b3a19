// The GEMM of the tutorial's step 11, whose clusters take the work of clusters that they cancel: a
// warp asks for the next tile, and the other roles iterate over the answers.
#include <tmaasync/structured/cluster_launch_scheduler.cuh>
#include <tmaasync/tensor_memory.cuh>

using namespace tmaasync;

using OperandA = Tcgen05Operand<ATile, Major::kK>;
using OperandB = Tcgen05Operand<BTile, Major::kK>;
constexpr int kM = ATile::side(0), kN = CTAS * BTile::side(0), kK = ATile::side(1);  // of a CTA
using Cluster = ClusterShape<CTAS>;
// Consumer 0 stores, helper 0 multiplies, and helper 1 asks.
using Roles = WarpSpecialized<1, RegisterSplit<0, 0>, CTAS>;
using Accumulators = AccumulatorRing<float, kN, 2, CTAS>;
using Output = TmemEpilogue<CTile>;
// In each CTA the thread that loads and the warps that store; of the pair the thread that
// multiplies.
constexpr int kReaders = CTAS * (1 + Roles::kConsumerWarps) + 1;
using Clusters = ClusterRequests<2, kReaders, CTAS>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
using OperandRing = Tcgen05Ring<Stage, STAGES, CTAS>;
struct SharedMemory {
    OperandRing ring;
    Output::Shared output;
    Accumulators accumulators;
    Clusters clusters;

    __device__ void init() {
        ring.init();
        accumulators.init();
        output.init();
        clusters.init();
    }
};
extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const TmemAllocation<Accumulators::kAllColumns, CTAS> tmem(shared.accumulators.address);
    const auto first = tmem.tile<float, kN>();
    const OutputTiles<kM, kN, Cluster> tiles(m, n);
    const ClusterLaunchScheduler<OutputTiles<kM, kN, Cluster>, Clusters> schedule(
        tiles, shared.clusters
    );
    const int k_blocks = count_tiles(k, kK);

    const auto load = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            const int n = tile.n + Cluster::rank_m() * BTile::side(0);
            for (const auto stage : producer.produce(k_blocks)) {
                const int k = stage.iteration() * kK;
                OperandRing::load(stage, a, stage->a, {k, tile.m});
                OperandRing::load(stage, b, stage->b, {k, n});
            }
        }
    };
    const auto multiply = [&](int helper) {
        if (helper == 1 && block_rank_in_cluster() == 0 && elect()) {
            set_role("scheduler");
            shared.clusters.ask();
        }
        if (helper != 0 || !leads_pair<CTAS>() || !elect()) return;
        set_role("mma");
        auto stages = shared.ring.consumer();
        auto accumulators = shared.accumulators.producer(first);
        for (const auto tile : schedule) {
            const auto d = accumulators.acquire();
            for (auto stage : stages.consume(k_blocks)) {
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
        for (const auto tile : schedule.by_warps()) output.store(accumulators, c, tile);
        output.drain();
    };
    Roles::run_with_helpers(shared, load, multiply, store, a, b, c);
}
