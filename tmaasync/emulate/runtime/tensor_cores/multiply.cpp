// The arithmetic of wgmma. It needs nothing of a thread but the location of its registers.
#include "tensor_cores/multiply.hpp"

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "tensor_cores/operands.hpp"

namespace tmaasync_emulate {

namespace {

// benchmarks/probe_tensor_core_bits.py on an H200: FP8 keeps fewer bits than the other types.
constexpr SumRule kFloat8Sums{
    .kept_bits = 13, .least_exponent = kHopperSums.least_exponent, .kept_of_float = ~0x3ffu
};

struct ElementType {
    Tcgen05Kind kind;
    OperandType type;
};

ElementType type_of(MmaElement element) {
    using enum MmaElement;
    switch (element) {
        case kF16:
            return {Tcgen05Kind::kF16, OperandType::kF16};
        case kBF16:
            return {Tcgen05Kind::kF16, OperandType::kBF16};
        case kTF32:
            return {Tcgen05Kind::kTF32, OperandType::kTF32};
        case kE4M3:
            return {Tcgen05Kind::kF8F6F4, OperandType::kE4M3};
        case kE5M2:
            return {Tcgen05Kind::kF8F6F4, OperandType::kE5M2};
        case kS8:
            return {Tcgen05Kind::kI8, OperandType::kS8};
        case kU8:
            return {Tcgen05Kind::kI8, OperandType::kU8};
    }
    __builtin_unreachable();
}

InstructionDescriptor instruction_of(const Mma& mma) {
    const ElementType a = type_of(mma.a_element);
    InstructionDescriptor at(0, {.kind = a.kind});
    at.a = a.type;
    at.b = type_of(mma.b_element).type;
    at.d = mma.sum;
    at.m = kMmaRows;
    at.n = mma.columns;
    at.a_negated = mma.is_negated;
    return at;
}

// PTX ISA: register i of A has rows lane / 4 + i % 2 * 8 of its warp and the half i / 2 of K.
void gather_registers(const GroupMma& mmas, OperandCodes& to) {
    for (uint32_t row = 0; row < kMmaRows; ++row) {
        uint32_t words[kMmaDepthBytes / 4];
        for (uint32_t i = 0; i < kMmaDepthBytes / 4; ++i) {
            const Mma& mma = *mmas[row / 16 * 32 + row % 8 * 4 + i % 4];
            words[i] = mma.a_registers[i / 4 * 2 + row / 8 % 2];
        }
        to.gather_lane(row, words);
    }
}

// PTX ISA: accumulator i of a thread is at this row and column of m64nN.
struct FragmentElement {
    uint32_t row;
    uint32_t column;

    FragmentElement(uint32_t thread, uint32_t i)
        : row(thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8),
          column(i / 4 * 8 + thread % 4 * 2 + i % 2) {}
};

// Calls act(the thread's accumulator, the buffer's word) for all of them.
template <typename Held, typename Act>
void for_each_held(const GroupMma& mmas, MmaBuffers& at, Act act) {
    const uint32_t columns = mmas[0]->columns;
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        auto* held = static_cast<Held*>(mmas[thread]->accumulators);
        for (uint32_t i = 0; i < columns / 2; ++i) {
            const FragmentElement element(thread, i);
            act(held[i], at.accumulators[element.row * columns + element.column]);
        }
    }
}

template <typename Act>
void for_each_sum(const GroupMma& mmas, MmaBuffers& at, Act act) {
    if (mmas[0]->sum == MmaSum::kHalf) return for_each_held<uint16_t>(mmas, at, act);
    for_each_held<uint32_t>(mmas, at, act);
}

}  // namespace

void gather_accumulators(const GroupMma& mmas, MmaBuffers& at) {
    for_each_sum(mmas, at, [](auto& held, uint32_t& word) { word = held; });
}

void scatter_accumulators(const GroupMma& mmas, MmaBuffers& at) {
    for_each_sum(mmas, at, [](auto& held, uint32_t word) {
        held = static_cast<std::remove_reference_t<decltype(held)>>(word);
    });
}

void execute_mma(const GroupMma& mmas, const uint8_t* window, MmaBuffers& at) {
    const Mma& mma = *mmas[0];
    const InstructionDescriptor instruction = instruction_of(mma);
    Tcgen05Multiplication& to = at.multiplication;
    to.reset(instruction);
    to.sums = instruction.form.kind == Tcgen05Kind::kF8F6F4 ? kFloat8Sums : kHopperSums;
    to.accumulates = mma.accumulates;
    if (mma.a_in_registers) {
        gather_registers(mmas, to.a);
    } else {
        to.a.gather(matrix_a(mma), window, 0, kMmaRows);
    }
    to.b.gather(matrix_b(mma), window, 0, mma.columns);
    to.decode();
    to.multiply(0, kMmaRows, 0, mma.columns, at.accumulators, mma.columns);
}

}  // namespace tmaasync_emulate
