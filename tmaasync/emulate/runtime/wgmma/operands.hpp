// Checks of the operands of wgmma in shared memory.
#pragma once

#include <cstdint>

#include "state/fiber.hpp"
#include "tensor_cores/operands.hpp"

namespace tmaasync_emulate {

// Checks where an operand of `rows` rows lies, and whether it was written.
void check_operand(
    const Fiber& issuer, const IssuedMma& mma, const Matrix& matrix, uint32_t rows, const char* name
);

}  // namespace tmaasync_emulate
