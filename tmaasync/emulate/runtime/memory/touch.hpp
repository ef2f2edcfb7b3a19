// Checks of the kernel's ordinary accesses, as tmaasync_emulate/accesses.hpp reports them.
//
// They check whether the thread may access these bytes, and with a race detector everything that it
// checks.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

void touch(Fiber& fiber, const void* pointer, uint64_t bytes, bool writes);

// Called before an access to global memory through which clusters may signal one another.
void let_other_clusters_run(Fiber& fiber, uintptr_t address, bool writes);

// Checks an atomic operation that uses the old value.
void check_old_value(Fiber& fiber, uintptr_t address, uint32_t bytes);

// CUDA C++ Programming Guide, __ldg(): the data must be read-only while the kernel runs.
void check_not_written(Fiber& fiber, uintptr_t address, uint32_t bytes);

// Called before an atomic operation: checks the bytes that it accesses.
void reach_atomically(Fiber& fiber, uintptr_t address, uint32_t bytes, bool writes, Scope scope);

// Checks an atomic operation, and publishes and acquires writes through it.
void touch_atomically(Fiber& fiber, uintptr_t address, uint32_t bytes, bool writes, Scope scope);

void touch_as(Fiber& fiber, const void* pointer, uint64_t bytes, AccessKind kind, bool is_aligned);

}  // namespace tmaasync_emulate
