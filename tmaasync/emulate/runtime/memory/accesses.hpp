// Reports of accesses to the race detector.
#pragma once

#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Called before any write that is not an mbarrier instruction.
void check_no_barrier(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes);

void touch_shared(
    Fiber& fiber, Operation operation, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes
);

void touch_global(
    Fiber& fiber,
    Operation operation,
    uintptr_t address,
    uint64_t bytes,
    bool writes,
    bool is_system = false
);

Agent bulk_agent(Cluster& cluster, Agent& agent);

Access access_in(
    const Cluster& cluster, Agent thread, Epoch epoch, uintptr_t site, Operation operation
);

}  // namespace tmaasync_emulate
