// The thread that calls the runtime.
#pragma once

#include <cstdint>

#include "schedule/faults.hpp"
#include "schedule/worker.hpp"

// The calling thread, with its call site recorded. Every function that kernels call begins with it.
#define TMAASYNC_EMULATE_CALLER() caller(reinterpret_cast<uintptr_t>(__builtin_return_address(0)))

namespace tmaasync_emulate {

inline Fiber& caller(uintptr_t site) {
    Fiber& fiber = current_fiber();
    LoopWatch& watch = fiber.cluster->worker->watch;
    fiber.site = site;
    watch.note_call();
    if (watch.is_on()) watch.end();
    if (fiber.races.repeat) check_repeat(fiber);
    return fiber;
}

}  // namespace tmaasync_emulate
