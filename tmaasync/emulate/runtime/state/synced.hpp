// An event that synchronises threads, and the operations that happen before it.
#pragma once

#include "abi.hpp"
#include "races/clocks.hpp"

namespace tmaasync_emulate {

struct Synced {
    SyncEvent event;
    Clock before;
};

}  // namespace tmaasync_emulate
