// GEMMs made of the structured headers. The test passes
//
//   ATile, BTile, CTile    operands and the chunks of the output
//   A_MAJOR, B_MAJOR, C_MAJOR    numbers of a Major, and of an OutputMajor
//   CONSUMERS, ROWS, BLOCK_N, STAGES, PING_PONG
//   EPILOGUE    the number of a Form
#include <tmaasync/shared.cuh>
#include <tmaasync/structured/epilogue_ops.cuh>
#include <tmaasync/structured/grouped_scheduler.cuh>
#include <tmaasync/structured/mainloop.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/structured/static_scheduler.cuh>

using namespace tmaasync;

enum Form { kPlain, kReduce, kFused, kFunctor, kRowSums, kAddend, kTwoOutputs };
constexpr Form kForm = static_cast<Form>(EPILOGUE);

using OperandA = WgmmaOperand<ATile, static_cast<Major>(A_MAJOR)>;
using OperandB = WgmmaOperand<BTile, static_cast<Major>(B_MAJOR)>;
using Loop = MainLoop<OperandA, OperandB, ROWS, BLOCK_N>;
using Output = Epilogue<CTile, BLOCK_N, static_cast<OutputMajor>(C_MAJOR)>;

constexpr int kConsumersPerTile = PING_PONG ? 1 : CONSUMERS;
constexpr int kBlockM = kConsumersPerTile * ROWS;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<4 * kConsumersPerTile>> ring;
    Output::Shared output[CONSUMERS];

    __device__ void init() { ring.init(); }
};
using Roles = WarpSpecialized<CONSUMERS>;
using Stages = RingConsumer<decltype(SharedMemory::ring), Proxy::kAsync>;
using Addends = AddendChunks<Output, Stage, CONSUMERS, ROWS>;
extern "C" __device__ const int structured_gemm_shared_bytes = sizeof(SharedMemory);

struct Problem {
    const CTile& c;
    const CTile& other;  // a second output, or an addend
    const float* column_bias;
    const float* row_bias;
    float* row_sums;
    float factor;
    int m, n, k;
    const int* ends;  // of ragged sequences
    int sequences;
};

// Rows of the output, in sequences or in one piece.
template <bool kIsRagged>
__device__ auto schedule_of(const Problem& p) {
    if constexpr (kIsRagged) {
        return GroupedScheduler<kBlockM, BLOCK_N>(RowGroups{p.ends, p.sequences, p.m}, p.n);
    } else {
        return StaticScheduler(OutputTiles<kBlockM, BLOCK_N>(p.m, p.n));
    }
}

__device__ int first_row(const OutputTile& tile) {
    return tile.m;
}
__device__ int first_row(const GroupTile& tile) {
    return tile.rows.start + tile.m;
}

__device__ Coordinates<2> at(int major, int mn, int k) {
    return major == 0 ? Coordinates<2>{k, mn} : Coordinates<2>{mn, k};
}

__device__ void load(SharedMemory& shared, const ATile& a, const BTile& b, const Problem& problem) {
    const int k_blocks = (problem.k + Loop::kDepth - 1) / Loop::kDepth;
    auto producer = shared.ring.producer();
    for (const auto tile : schedule_of<IsRagged<CTile>::kValue>(problem)) {
        const int m = first_row(tile);
        for (auto stage : producer.produce(k_blocks)) {
            const int k = stage.iteration() * Loop::kDepth;
            a.async_copy(stage->a, stage.full(), at(A_MAJOR, m, k));
            b.async_copy(stage->b, stage.full(), at(B_MAJOR, tile.n, k));
        }
        const auto load_addend = [&](const auto& addend) {
            if constexpr (kForm == kAddend) Addends::load(producer, addend, tile);
        };
        load_addend(problem.other);
    }
}

// Templates: what a form does not have is not compiled.
template <Form kChosen, typename Accumulators, typename Tile>
__device__ void store(
    Output& output,
    Stages& stages,
    Accumulators& accumulators,
    const Tile& tile,
    const Problem& p,
    int consumer
) {
    const auto& c = p.c;
    if constexpr (kChosen == kReduce) {
        output.reduce(accumulators, c, tile);
    } else if constexpr (kChosen == kFused) {
        output.store(
            accumulators, c, tile, Scale{p.factor}, ColumnBias<float>{p.column_bias, p.n},
            RowBias<float>{p.row_bias, p.m}, Activate<Activation::kRelu>{}
        );
    } else if constexpr (kChosen == kFunctor) {
        output.store(accumulators, c, tile, [&](auto value, int row, int column) {
            return value + row - 2 * column;
        });
    } else if constexpr (kChosen == kRowSums) {
        const auto square = [](float value, int, int) { return value * value; };
        const auto emit = [&](int row, float sum) { atomicAdd(p.row_sums + row, sum); };
        output.store(
            accumulators, c, tile, RowBias<float>{p.row_bias, p.m}, RowSums{square, emit, p.m, p.n}
        );
    } else if constexpr (kChosen == kAddend) {
        const Addend<Addends, Stages> add{stages, consumer, p.factor};
        output.store(accumulators, c, tile, add);
    } else if constexpr (kChosen == kTwoOutputs) {
        // Every second chunk goes to the other output.
        const auto send = [&](const auto& chunk, int row, int column) {
            const auto& to = column / Output::kChunkColumns % 2 == 0 ? c : p.other;
            to.async_store(chunk, {tile.n + column, tile.m + row});
        };
        output.write(accumulators, tile, send);
    } else {
        output.store(accumulators, c, tile);
    }
}

__device__ void multiply(SharedMemory& shared, const Problem& problem, int consumer) {
    const int k_blocks = (problem.k + Loop::kDepth - 1) / Loop::kDepth;
    const int row = PING_PONG ? 0 : consumer * ROWS;
    auto stages = shared.ring.consumer<Proxy::kAsync>();
    Output output(shared.output[consumer], consumer, row);
    const auto finish = [&](auto& accumulators, const auto& tile) {
        store<kForm>(output, stages, accumulators, tile, problem, consumer);
    };
    const auto schedule = schedule_of<IsRagged<CTile>::kValue>(problem);
    if constexpr (PING_PONG) {
        multiply_tiles_pingpong<Loop>(stages, schedule, k_blocks, consumer, finish);
    } else {
        multiply_tiles_cooperative<Loop>(stages, schedule, k_blocks, row, finish);
    }
    output.drain();
}

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) structured_gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const __grid_constant__ CTile other,
    const float* column_bias,
    const float* row_bias,
    float* row_sums,
    float factor,
    int m,
    int n,
    int k,
    const int* ends,
    int sequences
) {
    const Problem problem{c, other, column_bias, row_bias, row_sums, factor,
                          m, n,     k,           ends,     sequences};
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run(
        shared, [&] { load(shared, a, b, problem); },
        [&](int consumer) { multiply(shared, problem, consumer); }, a, b, c, other
    );
}
