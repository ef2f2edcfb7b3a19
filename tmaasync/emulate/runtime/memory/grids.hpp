// Programmatic dependent launches: griddepcontrol.wait.
#pragma once

#include <cstdint>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

void note_grid_wait(Fiber& fiber);

// Called before a thread or a copy accesses global memory.
void check_grids_awaited(Fiber& fiber, uintptr_t address);

}  // namespace tmaasync_emulate
