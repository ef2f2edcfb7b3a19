#pragma once

#include <tmaasync/ptx/global.cuh>

// Predicated accesses of 4, 8 or 16 bytes to global memory, or two of 16: ldg32 to ldg256 and stg32
// to stg256 in other languages. With kMaxBytes = 32, which needs sm_100a, sm_103a or sm_120a, one
// of 32 bytes.
namespace tmaasync {

// The accesses that move a type.
template <typename T, int kMaxBytes>
struct GlobalAccess {
    static constexpr int kBytes = sizeof(T);
    static constexpr int kAlignment = alignof(T);
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16 || kBytes == 32, "4, 8, 16, 32 bytes");
    static_assert(kMaxBytes == 16 || kMaxBytes == 32, "16 bytes, or 32 on Blackwell");
    static_assert(
        kAlignment >= kMaxBytes || kAlignment >= kBytes,
        "a type aligned to its size, or to the largest access"
    );
    static_assert(__is_trivially_copyable(T), "plain data");

    static constexpr int kWords = kBytes < kMaxBytes ? kBytes / 4 : kMaxBytes / 4;
    static constexpr int kParts = kBytes / (4 * kWords);
};

// Load a T (uint, float2, uint4 ...), or zeros where the predicate does not hold: then the address
// may be any.
template <int kMaxBytes = 16, typename T>
__device__ __forceinline__ T load_global(const T* global, bool predicate = true) {
    using Access = GlobalAccess<T, kMaxBytes>;
    u32 words[Access::kParts][Access::kWords];
#pragma unroll
    for (int part = 0; part < Access::kParts; ++part) {
        ptx::ld_global(
            words[part], reinterpret_cast<const u32(*)[Access::kWords]>(global) + part, predicate
        );
    }
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
}

// Store the value where the predicate holds.
template <int kMaxBytes = 16, typename T>
__device__ __forceinline__ void store_global(T* global, const T& value, bool predicate = true) {
    using Access = GlobalAccess<T, kMaxBytes>;
    u32 words[Access::kParts][Access::kWords];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int part = 0; part < Access::kParts; ++part) {
        ptx::st_global(
            reinterpret_cast<u32(*)[Access::kWords]>(global) + part, words[part], predicate
        );
    }
}

}  // namespace tmaasync
