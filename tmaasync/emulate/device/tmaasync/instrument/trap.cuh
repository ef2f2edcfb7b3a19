#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::instrument {

constexpr bool kIsEmulated = true;

// Ends the launch with a fault of these facts.
[[noreturn]] __device__ __forceinline__ void trap_with(
    const char* argument, i64 value, bool is_address, const char* rule, i64 limit
) {
    using namespace tmaasync_emulate;
    const MentionKind kind = is_address ? MentionKind::kHexadecimal : MentionKind::kNumeral;
    const Mention facts[] = {
        text_at(argument),
        {static_cast<u64>(value), kind},
        text_at(rule),
        {static_cast<u64>(limit), MentionKind::kNumeral},
    };
    fail(FaultKind::kArgument, facts, 4);
}

[[noreturn]] __device__ __forceinline__ void trap_beyond(
    const char* argument, u64 value, u64 count
) {
    trap_with(
        argument, static_cast<i64>(value), false, "it must be below", static_cast<i64>(count)
    );
}

}  // namespace tmaasync::instrument
