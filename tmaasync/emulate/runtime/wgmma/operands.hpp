// Checks of the operands of wgmma and tcgen05.mma in shared memory.
#pragma once

#include <cstdint>

#include "state/fiber.hpp"
#include "tensor_cores/operands.hpp"

namespace tmaasync_emulate {

// An operand as reports name it.
struct OperandName {
    const char* instruction;
    const char* operand;
};

// The fault of an operand of `rows` rows in the shared memory of a CTA: it lies elsewhere, or was
// not written, or in another pattern.
Reason reason_of_operand(
    const Fiber& issuer,
    const Cta& cta,
    const Matrix& matrix,
    uint32_t rows,
    const OperandName& name
);

}  // namespace tmaasync_emulate
