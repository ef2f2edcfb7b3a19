// tcgen05.mma: its operands are checked when it is issued, and read when it is executed.
#pragma once

#include <tmaasync_emulate/tcgen05_calls.hpp>

#include "state/cluster.hpp"
#include "tensor_cores/tcgen05_instruction.hpp"

namespace tmaasync_emulate {

InstructionDescriptor descriptor_of(const Tcgen05Mma& mma);

// Checks the descriptors, and that tensor memory has the columns, in both CTAs of a pair.
void check_multiplication(Fiber& fiber, const Tcgen05Mma& mma);

// Identifies the accumulators: the columns, shape and kind.
uint64_t accumulators_of(const Tcgen05Mma& mma);

// Executes an mma of a CTA, or of the pair that begins with it. Returns the reason of a fault.
Reason execute_multiplication(Cluster& cluster, Cta& cta, const TensorOperation& operation);

}  // namespace tmaasync_emulate
