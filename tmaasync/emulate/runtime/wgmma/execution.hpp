// The execution of a wgmma, no earlier than a thread waits for the result.
#pragma once

#include <cstdint>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

// The compiler's contents of variables without a value; toolchain.py asks for them.
#if defined(__clang__)
constexpr uint32_t kNoFloat = 0xffffffff, kNoInteger = 0xaaaaaaaa;
#else
constexpr uint32_t kNoFloat = 0xfefefefe, kNoInteger = 0xfefefefe;
#endif

// Executes the wgmmas up to `target`, in order.
void execute_mmas(Fiber& last, Warpgroup& group, uint64_t target);

}  // namespace tmaasync_emulate
