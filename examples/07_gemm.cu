// New here: a fast GEMM, C = A B^T, of the parts that all fast GEMMs have: roles, a tile scheduler,
// a main loop over a ring of stages, and an epilogue. It is persistent: as many CTAs are launched
// as the GPU runs at once, and each computes several tiles of C. The CTAs of a cluster multicast
// the rows of A to each other.
#include <tmaasync/structured.cuh>

using namespace tmaasync;

constexpr int kM = ATile::side(0), kN = BTile::side(0), kK = ATile::side(1);  // of a CTA
constexpr int kRows = kM / CONSUMERS;                                         // of a warpgroup
using Cluster = ClusterShape<1, CLUSTER>;  // CTAs along N, which share the rows of A
using Roles = WarpSpecialized<CONSUMERS, DefaultRegisterSplit<CONSUMERS>, Cluster::kCtas>;
using Loop = MainLoop<WgmmaOperand<ATile, Major::kK>, WgmmaOperand<BTile, Major::kK>, kRows, kN>;
using Output = Epilogue<CTile, kN>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<Roles::kConsumerWarps>, Cluster::Sharing> ring;
    Output::Shared output[Roles::kConsumers];

    __device__ void init() { ring.init(); }
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
    const StaticScheduler schedule(OutputTiles<kM, kN, Cluster, 16>(m, n));
    const int k_blocks = count_tiles(k, kK);

    // One thread: fills stage after stage along K, and goes on with the next tile.
    const auto produce = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            for (auto stage : producer.produce(k_blocks)) {
                stage.async_multicast_load(a, stage->a, {stage.iteration() * kK, tile.m});
                b.async_copy(stage->b, stage.full(), {stage.iteration() * kK, tile.n});
            }
        }
    };

    // A warpgroup: multiplies its rows of the same tiles, and stores them.
    const auto consume = [&](int consumer) {
        auto stages = shared.ring.consumer<Proxy::kAsync>();
        Output output(shared.output[consumer], consumer, consumer * kRows);
        for (const auto tile : schedule) {
            Loop::Accumulators accumulators;
            Loop::multiply(stages, accumulators, k_blocks, consumer * kRows);
            output.store(accumulators, c, tile);
        }
        output.drain();
    };

    Roles::run(shared, produce, consume, a, b, c);
}
