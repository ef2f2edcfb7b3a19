// The arithmetic of one wgmma, from its operands to the registers of 128 threads.
#pragma once

#include <array>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

namespace tmaasync_emulate {

constexpr uint32_t kGroupThreads = 128;
constexpr uint32_t kMmaRows = 64;
constexpr uint32_t kMaxMmaDepth = 32;
constexpr uint32_t kMaxMmaColumns = 256;

// Operands and accumulators of one wgmma. The words are floats, or integers that wrap.
struct MmaBuffers {
    alignas(64) uint32_t a[kMmaRows * kMaxMmaDepth];
    alignas(64) uint32_t b[kMaxMmaDepth * kMaxMmaColumns];
    alignas(64) uint32_t accumulators[kMmaRows * kMaxMmaColumns];
};

// One wgmma, as each thread of its warpgroup issued it.
using GroupMma = std::array<const Mma*, kGroupThreads>;

// Copies the accumulators of the threads to the buffer.
void gather_accumulators(const GroupMma& mmas, MmaBuffers& at);

// Copies the accumulators in the buffer to the threads.
void scatter_accumulators(const GroupMma& mmas, MmaBuffers& at);

// Multiplies A by B, and adds the result to the accumulators in the buffer.
void execute_mma(const GroupMma& mmas, const uint8_t* window, MmaBuffers& at);

}  // namespace tmaasync_emulate
