#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::instrument {

constexpr bool kIsEmulated = true;

// Ends the launch with a fault of these words.
[[noreturn]] __device__ __forceinline__ void trap_with(
    const char* argument, i64 value, bool is_address, const char* rule, i64 limit
) {
    const char* const format = is_address ? "%s is %#llx; %s %lld" : "%s is %lld; %s %lld";
    char words[256];
    std::snprintf(words, sizeof(words), format, argument, value, rule, limit);
    tmaasync_emulate::fail(words);
}

[[noreturn]] __device__ __forceinline__ void trap_beyond(
    const char* argument, u64 value, u64 count
) {
    trap_with(
        argument, static_cast<i64>(value), false, "it must be below", static_cast<i64>(count)
    );
}

}  // namespace tmaasync::instrument
