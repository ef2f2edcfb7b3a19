// New here: step 7's GEMM, C = A B^T, on tensor memory. A thread loads, a thread multiplies, and a
// warpgroup stores: the accumulators of one tile are stored while the next tile is multiplied. With
// CTAS = 2 the two CTAs of a cluster multiply together: each loads its own rows of A, and half of
// the rows of B.
#include <tmaasync/tensor_memory.cuh>

using namespace tmaasync;

using OperandA = Tcgen05Operand<ATile, Major::kK>;
using OperandB = Tcgen05Operand<BTile, Major::kK>;
constexpr int kM = ATile::side(0), kN = CTAS * BTile::side(0), kK = ATile::side(1);  // of a CTA
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
        output.init();
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
    const StaticScheduler schedule(OutputTiles<kM, kN, Cluster>(m, n));
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
        for (const auto tile : schedule) output.store(accumulators, c, tile);
        output.drain();
    };
    Roles::run_with_helpers(shared, load, multiply, store, a, b, c);
}
