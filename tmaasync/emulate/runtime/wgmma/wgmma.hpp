// wgmma as threads issue it: 128 threads execute it together.
#pragma once

#include <cstddef>
#include <tmaasync_emulate/calls.hpp>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

void fence_mmas(Fiber& fiber);

void issue_mma(Fiber& fiber, const Mma& mma);

void commit_mmas(Fiber& fiber);

void wait_for_mmas(Fiber& fiber, std::size_t pending);

// Called at the end of a thread: a wgmma is complete only after a wait for it.
void check_mmas_are_done(Fiber& fiber);

}  // namespace tmaasync_emulate
