#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync/same_type.cuh>

// Accumulators on their way to another CTA that adds them to its own: split-K, stream-K.
namespace tmaasync {

// Row blocks, columns and registers of the accumulators of a MainLoop.
template <typename Accumulators>
struct AccumulatorShape;
template <typename AccumulatorRegister, int kBlocks, int kRegisters>
struct AccumulatorShape<AccumulatorRegister[kBlocks][kRegisters]> {
    using Register = AccumulatorRegister;
    static_assert(
        kSameType<Register, float> || kSameType<Register, int>,
        "fp32 or int32 accumulators: fp16 accumulators hold two columns in a register"
    );
    static constexpr int kRowBlocks = kBlocks;
    static constexpr int kColumns = 2 * kRegisters;
};

// The accumulators of kThreads threads, Register[row blocks][registers] each. A thread reads what
// the thread of its number wrote, so that a warp's accesses are contiguous.
template <typename Accumulators, int kThreads>
struct PartialAccumulators {
    using Shape = AccumulatorShape<Accumulators>;
    using Register = typename Shape::Register;
    static constexpr int kRowBlocks = Shape::kRowBlocks;
    static constexpr int kQuads = Shape::kColumns / 8;

    // Four of a thread's accumulators.
    struct alignas(16) Quad {
        Register values[4];
    };

    Quad quads[kRowBlocks][kQuads][kThreads];

    // Write a thread's accumulators, of each row block those from `first` on.
    template <int kRegisters>
    __device__ __forceinline__ void write(
        int thread, const Register (&accumulators)[kRowBlocks][kRegisters], int first = 0
    ) {
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
            for (int i = 0; i < kQuads; ++i) {
                const Register* s = accumulators[row_block] + first + 4 * i;
                quads[row_block][i][thread] = {s[0], s[1], s[2], s[3]};
            }
        }
    }

    // Add them to a thread's accumulators.
    __device__ __forceinline__ void add_to(int thread, Accumulators& accumulators) const {
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
            for (int i = 0; i < kQuads; ++i) {
                const Quad quad = quads[row_block][i][thread];
#pragma unroll
                for (int j = 0; j < 4; ++j) accumulators[row_block][4 * i + j] += quad.values[j];
            }
        }
    }
};

}  // namespace tmaasync
