// Main loops of a user's own MMAs: multiply_stages. The test passes ATile, BTile, CTile, STAGES and
// FORM, the number of a Form.
#include <tmaasync/shared.cuh>
#include <tmaasync/structured/epilogue_ops.cuh>
#include <tmaasync/structured/mainloop.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/structured/static_scheduler.cuh>

using namespace tmaasync;

// silu(A B^T) * (A B'^T); A in registers, doubled there
enum Form { kTwoOperandsB, kAInRegisters };

constexpr int kM = ATile::side(0), kN = BTile::side(0), kK = ATile::side(1);
constexpr int kConsumers = kM / 64;
using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kK>;
using Output = Epilogue<CTile, kN>;
using Roles = WarpSpecialized<kConsumers>;

struct Stage {
    ATile::Shared a;
    BTile::Shared gate;
    BTile::Shared up;
};
struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<Roles::kConsumerWarps>> ring;
    Output::Shared output[kConsumers];

    __device__ void init() { ring.init(); }
};
extern "C" __device__ const int structured_stages_shared_bytes = sizeof(SharedMemory);

template <Proxy kReader>
__device__ void multiply_two_operands(
    RingConsumer<decltype(SharedMemory::ring), kReader>& stages,
    float (&gate)[1][kN / 2],
    int k_blocks,
    int row
) {
    float up[1][kN / 2];
    const auto issue = [&](const Stage& stage, bool accumulate) {
        const u64 a = OperandA::descriptor(stage.a, row);
        wgmma_tile<OperandA, OperandB>(gate[0], a, OperandB::descriptor(stage.gate, 0), accumulate);
        wgmma_tile<OperandA, OperandB>(up[0], a, OperandB::descriptor(stage.up, 0), accumulate);
    };
    multiply_stages(stages, k_blocks, issue, gate, up);
    for (int i = 0; i < kN / 2; ++i) gate[0][i] = silu(gate[0][i]) * up[0][i];
}

// The registers of A are ordinary reads of the stage.
template <Proxy kReader>
__device__ void multiply_registers(
    RingConsumer<decltype(SharedMemory::ring), kReader>& stages,
    float (&accumulators)[1][kN / 2],
    int k_blocks,
    int row
) {
    u32 a[OperandA::kSteps][4];
    const auto issue = [&](const Stage& stage, bool accumulate) {
        wgmma_wait_group<0>();
        wgmma_fence_operands(a);
        for (int step = 0; step < OperandA::kSteps; ++step) {
            load_a_fragment<OperandA>(a[step], stage.a, row, step);
            for (u32& pair : a[step]) {
                const float2 values = unpack_pair<float16>(pair);
                pair = pack_pair<float16>(2 * values.x, 2 * values.y);
            }
        }
        wgmma_fence_operands(a);
        wgmma_fence();
        wgmma_tile_rs<OperandB>(
            accumulators[0], a, OperandB::descriptor(stage.gate, 0), accumulate
        );
    };
    multiply_stages(stages, k_blocks, issue, accumulators, a);
}

template <int kForm>
__device__ void multiply(
    SharedMemory& shared, const CTile& c, int m, int n, int k_blocks, int consumer
) {
    constexpr Proxy kReader = kForm == kAInRegisters ? Proxy::kGeneric : Proxy::kAsync;
    auto stages = shared.ring.consumer<kReader>();
    Output output(shared.output[consumer], consumer, consumer * 64);
    for (const auto tile : StaticScheduler(OutputTiles<kM, kN>(m, n))) {
        float accumulators[1][kN / 2];
        if constexpr (kForm == kTwoOperandsB) {
            multiply_two_operands(stages, accumulators, k_blocks, consumer * 64);
        } else {
            multiply_registers(stages, accumulators, k_blocks, consumer * 64);
        }
        output.store(accumulators, c, tile);
    }
    output.drain();
}

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) structured_stages(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile gate,
    const __grid_constant__ BTile up,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int k_blocks = (k + kK - 1) / kK;
    const auto load = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : StaticScheduler(OutputTiles<kM, kN>(m, n))) {
            for (auto stage : producer.produce(k_blocks)) {
                const int at = stage.iteration() * kK;
                a.async_copy(stage->a, stage.full(), {at, tile.m});
                gate.async_copy(stage->gate, stage.full(), {at, tile.n});
                up.async_copy(stage->up, stage.full(), {at, tile.n});
            }
        }
    };
    Roles::run(
        shared, load, [&](int consumer) { multiply<FORM>(shared, c, m, n, k_blocks, consumer); }, a,
        gate, up, c
    );
}
