// New here: step 7's GEMM, C = A B^T, on tensor memory. A thread loads, a thread multiplies, and a
// warpgroup stores: the accumulators of one tile are stored while the next tile is multiplied.
#include <tmaasync/tensor_memory.cuh>

using namespace tmaasync;

using OperandA = Tcgen05Operand<ATile, Major::kK>;
using OperandB = Tcgen05Operand<BTile, Major::kK>;
constexpr int kM = ATile::side(0), kN = BTile::side(0), kK = ATile::side(1);  // of a CTA
// Consumer 0 stores and helper 0 multiplies; few registers are needed.
using Roles = WarpSpecialized<1, RegisterSplit<0, 0>>;
using Accumulators = AccumulatorRing<float, kN, 2>;
using Output = TmemEpilogue<CTile>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory {
    Tcgen05Ring<Stage, STAGES> ring;
    Output::Shared output;
    Accumulators accumulators;

    __device__ void init() {
        ring.init();
        accumulators.init();
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
    const TmemAllocation<Accumulators::kAllColumns> tmem(shared.accumulators.address);
    const auto first = tmem.tile<float, kN>();
    const StaticScheduler schedule(OutputTiles<kM, kN>(m, n));
    const int k_blocks = count_tiles(k, kK);

    const auto load = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            for (auto stage : producer.produce(k_blocks)) {
                a.async_copy(stage->a, stage.full(), {stage.iteration() * kK, tile.m});
                b.async_copy(stage->b, stage.full(), {stage.iteration() * kK, tile.n});
            }
        }
    };
    const auto multiply = [&](int helper) {
        if (helper != 0 || !elect()) return;
        set_role("mma");
        auto stages = shared.ring.consumer();
        auto accumulators = shared.accumulators.producer(first);
        for (const auto tile : schedule) {
            const auto d = accumulators.acquire();
            for (auto stage : stages.consume(k_blocks)) {
                tcgen05_mma<OperandA, OperandB>(d, stage->a, stage->b, stage.iteration() > 0);
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
