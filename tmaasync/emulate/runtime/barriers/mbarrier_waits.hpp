// Waits for the phases of mbarriers.
#pragma once

#include <cstdint>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

// Suspends the thread until the phase of this parity completes, or for a limited time.
bool wait_for_parity(
    Fiber& fiber, uint32_t address, uint32_t parity, bool acquires, const char* what
);

// Polls without suspending, and lets others run if the phase is not complete.
bool test_parity(Fiber& fiber, uint32_t address, uint32_t parity, bool acquires);

// Tests a state token, which is the number of its phase.
bool test_state(Fiber& fiber, uint32_t address, uint64_t state);

}  // namespace tmaasync_emulate
