// Accesses of threads: checks whether the thread may access the bytes, and reports to the race
// detector.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Called before any write to global memory.
inline void keep_before_write(const Cluster& cluster, uintptr_t address, uint64_t bytes) {
    if (Undo* const undo = cluster.launch.memory.undo) undo->keep(address, bytes);
}

// Called before any write that is not an mbarrier instruction.
void check_no_barrier(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes);

// Called before a read by a thread: something has written the bytes, and they are no mbarrier's.
void check_read(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes);

// Records an access of a thread, which may not be the one that runs.
void record_shared(
    Fiber& fiber, Operation operation, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes
);

// Records an access of the thread that runs, and ends it if the access was part of a race.
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

// --- the kernel's own accesses, as tmaasync_emulate/accesses.hpp reports them
// ------------------------

void touch(Fiber& fiber, const void* pointer, uint64_t bytes, bool writes);

// Called before an access to global memory through which clusters may signal one another.
void let_other_clusters_run(Fiber& fiber, uintptr_t address, bool writes);

// Checks an atomic operation that uses the old value.
void check_old_value(Fiber& fiber, uintptr_t address, uint32_t bytes);

// CUDA C++ Programming Guide, __ldg(): the data must be read-only while the kernel runs.
void check_not_written(Fiber& fiber, uintptr_t address, uint32_t bytes);

// Called before an atomic operation: checks the bytes that it accesses.
void reach_atomically(Fiber& fiber, uintptr_t address, uint32_t bytes, bool writes, Scope scope);

// A reduction acquires nothing: its thread does not know which operations came before.
enum class AtomicAccess : uint8_t { kRead, kChange, kFail, kReduce };

// Checks an atomic operation, and publishes and acquires writes through it.
void touch_atomically(
    Fiber& fiber, uintptr_t address, uint32_t bytes, AtomicAccess access, Scope scope
);

void touch_as(Fiber& fiber, const void* pointer, uint64_t bytes, AccessKind kind, bool is_aligned);

}  // namespace tmaasync_emulate
