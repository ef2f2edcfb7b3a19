#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// L2 eviction policies as createpolicy.fractional makes them for the whole access.
enum class CachePolicy : u64 {
    kEvictNormal = 0x1000000000000000,
    kEvictFirst = 0x12F0000000000000,
    kEvictLast = 0x14F0000000000000,
};

}  // namespace tmaasync
