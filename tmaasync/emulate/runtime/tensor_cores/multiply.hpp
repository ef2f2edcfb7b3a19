// The arithmetic of one wgmma, from its operands to the registers of 128 threads.
#pragma once

#include <array>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "tensor_cores/tcgen05_multiply.hpp"

namespace tmaasync_emulate {

constexpr uint32_t kGroupThreads = 128;
constexpr uint32_t kMmaRows = 64;
constexpr uint32_t kMaxMmaColumns = 256;

// Operands of an instruction of the tensor cores, and the accumulators of one wgmma: 64 rows of
// words. A half fills the low half of its word.
struct MmaBuffers {
    Tcgen05Multiplication multiplication;
    alignas(64) uint32_t accumulators[kMmaRows * kMaxMmaColumns];
};

// One wgmma, as each thread of its warpgroup issued it.
using GroupMma = std::array<const Mma*, kGroupThreads>;

// Copies the accumulators of the threads to the buffer.
void gather_accumulators(const GroupMma& mmas, MmaBuffers& at);

// Copies the accumulators in the buffer to the threads.
void scatter_accumulators(const GroupMma& mmas, MmaBuffers& at);

// Multiplies A by B, and adds the accumulators in the buffer, if they count.
void execute_mma(const GroupMma& mmas, const uint8_t* window, MmaBuffers& at);

}  // namespace tmaasync_emulate
