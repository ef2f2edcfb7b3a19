// The end of threads and CTAs.
#pragma once

#include "state/fiber.hpp"

namespace tmaasync_emulate {

// Ends the thread and never returns.
[[noreturn]] void exit_thread(Fiber& fiber);

}  // namespace tmaasync_emulate
