// C = relu(A B^T + bias): a GEMM with an epilogue of its own. One warpgroup loads tiles of A and B
// through a ring, the others multiply 64 rows each; the grid is persistent.
#include <tmaasync/structured.cuh>

using namespace tmaasync;

constexpr int kM = ATile::side(0), kN = BTile::side(0), kK = ATile::side(1);  // the CTA tile
using Roles = WarpSpecialized<kM / 64>;
using Loop = MainLoop<WgmmaOperand<ATile, Major::kK>, WgmmaOperand<BTile, Major::kK>, 64, kN>;
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
extern "C" __device__ const int my_kernel_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) my_kernel(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const float* bias,
    int m,
    int n,
    int k
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const StaticScheduler schedule(OutputTiles<kM, kN>(m, n));
    const int k_blocks = count_tiles(k, kK);

    const auto produce = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            for (auto stage : producer.produce(k_blocks)) {
                const int at_k = stage.iteration() * kK;
                a.async_copy(stage->a, stage.full(), {at_k, tile.m});
                b.async_copy(stage->b, stage.full(), {at_k, tile.n});
            }
        }
    };

    const auto consume = [&](int number) {
        const int row = 64 * number;  // of the CTA tile
        auto consumer = shared.ring.consumer<Proxy::kAsync>();
        Output output(shared.output[number], number, row);
        for (const auto tile : schedule) {
            Loop::Accumulators accumulators;
            Loop::multiply(consumer, accumulators, k_blocks, row);
            // Computes an element of the output from A B^T: write your own.
            output.store(accumulators, c, tile, [=](float value, int, int column) {
                return column < n ? fmaxf(value + bias[column], 0) : 0;
            });
        }
        output.drain();
    };

    Roles::run(shared, produce, consume, a, b, c);
}
