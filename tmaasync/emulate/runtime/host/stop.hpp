// The request to end a launch.
#pragma once

#include <atomic>

namespace tmaasync_emulate {

// Set to end the launch early.
using Stop = std::atomic<bool>;

}  // namespace tmaasync_emulate
