#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// L2 eviction policies: kEvictFirst and kEvictLast as createpolicy.fractional makes them for the
// whole access, kEvictNormal as in CUTLASS (TMA::CacheHintSm90). For evict_normal createpolicy
// makes 0x16F0000000000000 (H100).
enum class CachePolicy : u64 {
    kEvictNormal = 0x1000000000000000,
    kEvictFirst = 0x12F0000000000000,
    kEvictLast = 0x14F0000000000000,
};

}  // namespace tmaasync
