// Copies out of shared memory, in bulk groups.
#pragma once

#include <cstddef>
#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

void issue_store(Fiber& fiber, Store store, uint32_t address);

void commit_stores(Fiber& fiber);

void wait_for_group(Fiber& fiber, std::size_t pending, bool are_writes);

void write_late_stores(Cluster& cluster);

// Called at the end of a thread.
void finish_stores(Fiber& fiber);

}  // namespace tmaasync_emulate
