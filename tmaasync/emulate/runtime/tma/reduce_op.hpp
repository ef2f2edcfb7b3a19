// The operations of reductions.
#pragma once

#include <cstdint>

namespace tmaasync_emulate {

// The operations, in the order of tmaasync::ptx::ReduceOp.
enum class ReduceOp : uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

inline const char* name(ReduceOp op) {
    static constexpr const char* kNames[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
    return kNames[static_cast<int>(op)];
}

}  // namespace tmaasync_emulate
