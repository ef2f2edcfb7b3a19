// The registers of wgmma, which a thread must not access meanwhile.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

// Checks an access of a thread to its own stack, which holds its wgmma registers.
void touch_registers(Fiber& fiber, uintptr_t address, uint64_t bytes, bool writes);

// Bytes of one thread's accumulators.
uint32_t bytes_of_accumulators(const Mma& mma);

void check_mma_fence(Fiber& fiber, const Mma& mma);

void fence_registers(Fiber& fiber);

}  // namespace tmaasync_emulate
