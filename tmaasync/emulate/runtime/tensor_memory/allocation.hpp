// tcgen05.alloc, dealloc and relinquish_alloc_permit.
#pragma once

#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Waits until the columns are free, and writes their address to shared memory.
void allocate_columns(Fiber& fiber, uint32_t group, uint32_t shared, uint32_t columns);

void free_columns(Fiber& fiber, uint32_t group, uint32_t address, uint32_t columns);

void relinquish_permit(Fiber& fiber, uint32_t group);

// The reason why an allocation waits for ever.
Reason reason_of_waiting(const Fiber& fiber);

// True if a thread waits for columns that another CTA of its SM holds.
bool waits_for_columns_of_another(const Cluster& cluster);

// Called at the end of a CTA: all columns must be free.
void check_columns_are_free(Fiber& fiber);

}  // namespace tmaasync_emulate
