// tcgen05.cp and tcgen05.shift, which write tensor memory.
#pragma once

#include <tmaasync_emulate/tcgen05_calls.hpp>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Checks the operands when the copy is issued.
void check_tensor_copy(Fiber& fiber, const Tcgen05Copy& copy);

// Executes a copy in a CTA, or in the pair that begins with it. Returns the reason of a fault.
Reason execute_tensor_copy(Cluster& cluster, Cta& cta, const TensorOperation& operation);

void check_tensor_shift(Fiber& fiber, uint32_t address);

Reason execute_tensor_shift(Cluster& cluster, Cta& cta, const TensorOperation& operation);

}  // namespace tmaasync_emulate
