// Instructions of wgmma that only part of a warpgroup executed.
#pragma once

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Reports an instruction of wgmma that some warps of a warpgroup executed more often than others.
bool reports_lone_mma(Cluster& cluster, const Cta& cta);

void check_mma_calls(Fiber& fiber);

}  // namespace tmaasync_emulate
