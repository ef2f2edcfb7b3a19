#pragma once

#include <tmaasync/ptx/global.cuh>

// Predicated accesses of 4, 8 or 16 bytes to global memory, or two of 16: ldg32 to ldg256 and stg32
// to stg256 in other languages. A single access of 32 bytes needs sm_100.
namespace tmaasync {

// The accesses that move a type.
template <typename T>
struct GlobalAccess {
    static constexpr int kBytes = sizeof(T);
    static constexpr int kAlignment = alignof(T);
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16 || kBytes == 32, "4, 8, 16, 32 bytes");
    static_assert(kAlignment >= 16 || kAlignment >= kBytes, "a type aligned to its size, or to 16");
    static_assert(__is_trivially_copyable(T), "plain data");

    static constexpr int kWords = kBytes < 16 ? kBytes / 4 : 4;
    static constexpr int kParts = kBytes / (4 * kWords);
};

// Load a T (uint, float2, uint4 ...), or zeros where the predicate does not hold: then the address
// may be any.
template <typename T>
__device__ __forceinline__ T load_global(const T* global, bool predicate = true) {
    using Access = GlobalAccess<T>;
    u32 words[Access::kParts][Access::kWords];
#pragma unroll
    for (int part = 0; part < Access::kParts; ++part) {
        ptx::ld_global(words[part], reinterpret_cast<const u32(*)[4]>(global) + part, predicate);
    }
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
}

// Store the value where the predicate holds.
template <typename T>
__device__ __forceinline__ void store_global(T* global, const T& value, bool predicate = true) {
    using Access = GlobalAccess<T>;
    u32 words[Access::kParts][Access::kWords];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int part = 0; part < Access::kParts; ++part) {
        ptx::st_global(reinterpret_cast<u32(*)[4]>(global) + part, words[part], predicate);
    }
}

}  // namespace tmaasync
