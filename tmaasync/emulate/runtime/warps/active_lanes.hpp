// Lanes that go on together: __activemask().
#pragma once

#include <cstdint>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

// The chip's lanes stay together unless they branch. Here a lane waits for those still to come.
uint32_t find_active_lanes(Fiber& fiber);

}  // namespace tmaasync_emulate
