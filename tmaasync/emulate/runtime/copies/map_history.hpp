// Tensor maps in global memory that changed before a launch.
//
// PTX ISA, fence.proxy.tensormap: TMA may hold a map as an earlier launch used it, until a thread
// acquires the map.
#pragma once

#include <cstdint>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

// Reports a race if the map was changed since an earlier launch used it, or by one, and the thread
// has not acquired it.
void check_map_is_current(Fiber& fiber, uintptr_t map);

// Notes that this launch edits a map in global memory.
void note_edited_map(Fiber& fiber, uintptr_t map);

}  // namespace tmaasync_emulate
