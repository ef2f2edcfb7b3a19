// setmaxnreg: the registers of a CTA, which its warpgroups release and claim.
#pragma once

#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

Reason shortage_of(const Fiber& fiber);

// A claim waits for registers that it lacks: other warpgroups may release some.
void set_registers(Fiber& fiber, bool claims, uint32_t registers);

// Reports a change that only some warps of a warpgroup made. True if there is one.
bool reports_lone_change(Cluster& cluster, const Cta& cta);

void check_register_changes(Fiber& fiber);

}  // namespace tmaasync_emulate
