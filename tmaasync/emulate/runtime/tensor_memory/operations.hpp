// tcgen05.mma, cp, shift and commit: issued by one thread, and executed later in the order of
// issue.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/tcgen05_calls.hpp>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

void issue_tensor_mma(Fiber& fiber, const Tcgen05Mma& mma);

void issue_tensor_copy(Fiber& fiber, const Tcgen05Copy& copy);

void issue_tensor_shift(Fiber& fiber, uint32_t group, uint32_t address);

// Arrives on an mbarrier when the thread's operations so far have completed. A mask names the CTAs
// of a multicast.
void issue_tensor_commit(Fiber& fiber, uint32_t group, uint32_t barrier, uint32_t cta_mask);

// Executes the oldest operation in flight of a CTA. Runs in the scheduler, so a fault is reported
// for the issuer but does not stop it.
void execute_tensor_operation(Cluster& cluster, Cta& cta);

}  // namespace tmaasync_emulate
