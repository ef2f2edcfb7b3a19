// tcgen05.ld and tcgen05.st: a warp moves words between its registers and tensor memory.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/tcgen05_calls.hpp>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

void load_registers(
    Fiber& fiber, const Tcgen05Transfer& transfer, uint32_t address, uint32_t* registers
);

void store_registers(
    Fiber& fiber, const Tcgen05Transfer& transfer, uint32_t address, const uint32_t* registers
);

// tcgen05.wait::ld and tcgen05.wait::st
void wait_for_transfers(Fiber& fiber, bool stores);

}  // namespace tmaasync_emulate
