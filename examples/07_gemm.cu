// New here: a persistent GEMM, C = A B, of the parts that every fast GEMM has: roles, a tile
// scheduler, a main loop over a ring of stages, and an epilogue. As many CTAs are launched as the
// GPU runs at once, and each computes several tiles of C.
#include <tmaasync/structured.cuh>

using namespace tmaasync;

constexpr int kM = ATile::side(0), kN = BTile::side(1), kK = ATile::side(1);  // the CTA tile
using Roles = WarpSpecialized<kM / 64>;  // a warpgroup loads, the others multiply 64 rows each
using Loop = MainLoop<WgmmaOperand<ATile, Major::kK>, WgmmaOperand<BTile, Major::kMN>, 64, kN>;
using Output = Epilogue<CTile, kN>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};

struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<Roles::kConsumerWarps>> ring;
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
    const StaticScheduler schedule(OutputTiles<kM, kN>(m, n));
    const int k_blocks = count_tiles(k, kK);

    // One thread: fills stage after stage along K, and goes on with the next tile.
    const auto produce = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            for (auto stage : producer.produce(k_blocks)) {
                a.async_copy(stage->a, stage.full(), {stage.iteration() * kK, tile.m});
                b.async_copy(stage->b, stage.full(), {tile.n, stage.iteration() * kK});
            }
        }
    };

    // A warpgroup: multiplies its 64 rows of the same tiles, and stores them.
    const auto consume = [&](int number) {
        const int row = 64 * number;
        auto consumer = shared.ring.consumer<Proxy::kAsync>();
        Output output(shared.output[number], number, row);
        for (const auto tile : schedule) {
            Loop::Accumulators accumulators;
            Loop::multiply(consumer, accumulators, k_blocks, row);
            output.store(accumulators, c, tile);
        }
        output.drain();
    };

    Roles::run(shared, produce, consume, a, b, c);
}
