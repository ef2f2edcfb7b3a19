// One instruction wide: 64 rows and kColumns columns, several steps deep, out of buffers that are
// wider. wgmma_matmuls.py appends the entries, which choose among cases at run time.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/types.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

// Any tile: a case knows what its own looks like.
using Map = TMATensorTile<unsigned char, Shape<8, 16>>;

template <typename T, Swizzle kSwizzle, Major kMajor, int kExtent, int kDepth>
struct TileOf {
    static constexpr int kRows = kMajor == Major::kK ? kExtent : kDepth;
    static constexpr int kColumns = kMajor == Major::kK ? kDepth : kExtent;
    static constexpr int kSpan = span_bytes(kSwizzle) / static_cast<int>(sizeof(T));
    using Tile = TMATensorTile<T, Shape<kRows, kColumns>, Box<kRows, kSpan>, kSwizzle>;
};

struct Problem {
    const void* addends;  // float or int [64, columns]
    void* sums;
    u32 accumulates;
};

// The case's numbers, in the order of the host's fields.
template <
    typename A,
    typename B,
    typename Register,
    int kColumns,
    Swizzle kSwizzle,
    Major kMajorA,
    Major kMajorB,
    bool kAInRegisters,
    int kScaleA,
    int kScaleB,
    int kExtentA,
    int kExtentB,
    int kFirstA,
    int kFirstB,
    int kDepth>
struct Case {
    using ATile = typename TileOf<A, kSwizzle, kMajorA, kExtentA, kDepth>::Tile;
    using BTile = typename TileOf<B, kSwizzle, kMajorB, kExtentB, kDepth>::Tile;
    using OperandA = WgmmaOperand<ATile, kMajorA>;
    using OperandB = WgmmaOperand<BTile, kMajorB>;
    using Sum = decltype(accumulator_value(static_cast<const Register*>(nullptr), 0));
    static constexpr int kRegisters = kColumns / 2 / ptx::MmaAccumulators<Register>::per_register();
    using Sums = Register[1][1][kRegisters];

    struct SharedMemory {
        typename ATile::Shared a;
        typename BTile::Shared b;
        SharedMemBarrier full;
    };

    static __device__ void load(SharedMemory& shared, const Map& a, const Map& b) {
        if (threadIdx.x == 0) {
            shared.full.init(1);
            fence_barrier_init();
            shared.full.expect_bytes(ATile::kBytes + BTile::kBytes);
            reinterpret_cast<const ATile&>(a).async_copy(shared.a, shared.full, {0, 0});
            reinterpret_cast<const BTile&>(b).async_copy(shared.b, shared.full, {0, 0});
        }
        __syncthreads();
        shared.full.wait(0);
    }

    static __device__ void read(Sums& sums, const Problem& problem) {
        const auto* addends = static_cast<const Sum*>(problem.addends);
        Sum values[kColumns / 2];
        for (int i = 0; i < kColumns / 2; ++i) {
            const int row = accumulator_row(threadIdx.x, i);
            values[i] = addends[row * kColumns + accumulator_column(threadIdx.x, i)];
        }
        for (int i = 0; i < kRegisters; ++i) {
            if constexpr (kSameType<Register, u32>) {
                sums[0][0][i] = pack_pair<float16>(values[2 * i], values[2 * i + 1]);
            } else {
                sums[0][0][i] = values[i];
            }
        }
    }

    static __device__ void write(const Sums& sums, const Problem& problem) {
        auto* out = static_cast<Sum*>(problem.sums);
        for (int i = 0; i < kColumns / 2; ++i) {
            const int row = accumulator_row(threadIdx.x, i);
            const int column = accumulator_column(threadIdx.x, i);
            out[row * kColumns + column] = accumulator_value(sums[0][0], i);
        }
    }

    static __device__ void run(const Map& a, const Map& b, const Problem& problem) {
        auto& shared = dynamic_shared<SharedMemory>();
        load(shared, a, b);
        Sums sums;
        read(sums, problem);
        if constexpr (kAInRegisters) {
            u32 held[1][OperandA::kSteps][4];
            load_a_fragments<OperandA>(held, shared.a, kFirstA);
            wgmma_rs<OperandB, A, 0, kScaleA, kScaleB>(
                sums, held, shared.b, problem.accumulates, kFirstB
            );
        } else {
            wgmma<OperandA, OperandB, 0, kScaleA, kScaleB>(
                sums, shared.a, shared.b, problem.accumulates, kFirstA, kFirstB
            );
        }
        write(sums, problem);
    }
};
