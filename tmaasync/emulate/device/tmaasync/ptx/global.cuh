#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

// Ordinary accesses, which the runtime checks like any others.
template <int kWords>
struct alignas(kWords * sizeof(u32)) WordsInMemory {
    u32 words[kWords];
};

template <int kWords>
__device__ __forceinline__ void check_global_address(const void* global) {
    static_assert(kWords == 1 || kWords == 2 || kWords == 4 || kWords == 8, "4 to 32 bytes");
    if constexpr (kWords == 8) tmaasync_emulate::check_wide_access();
    if (reinterpret_cast<u64>(global) % (kWords * sizeof(u32)) == 0) return;
    tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kAlignment);
}

template <int kWords>
__device__ __forceinline__ void ld_global(
    u32 (&words)[kWords], const void* global, bool predicate
) {
    WordsInMemory<kWords> read{};
    if (predicate) {
        check_global_address<kWords>(global);
        read = *static_cast<const WordsInMemory<kWords>*>(global);
    }
    for (int i = 0; i < kWords; ++i) words[i] = read.words[i];
}

template <int kWords>
__device__ __forceinline__ void st_global(
    void* global, const u32 (&words)[kWords], bool predicate
) {
    if (!predicate) return;
    check_global_address<kWords>(global);
    WordsInMemory<kWords> written;
    for (int i = 0; i < kWords; ++i) written.words[i] = words[i];
    *static_cast<WordsInMemory<kWords>*>(global) = written;
}

}  // namespace tmaasync::ptx
