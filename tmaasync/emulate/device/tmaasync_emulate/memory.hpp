// Memory functions of a thread: CUDA C++ Programming Guide, "Memory Fence Functions", "Load
// Functions Using Cache Hints", "Address Space Predicate Functions" and "Address Space Conversion
// Functions".
#pragma once

#include <cstddef>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>
#include <type_traits>

// --- fences --------------------------------------------------------------------------------------

inline void __threadfence() {
    tmaasync_emulate::fence(tmaasync_emulate::Scope::kGpu);
}
inline void __threadfence_block() {
    tmaasync_emulate::fence(tmaasync_emulate::Scope::kCta);
}
inline void __threadfence_cluster() {
    tmaasync_emulate::fence(tmaasync_emulate::Scope::kCluster);
}
inline void __threadfence_system() {
    tmaasync_emulate::fence(tmaasync_emulate::Scope::kSystem);
}

// --- loads and stores with cache hints, which are ignored ----------------------------------------

#define TMAASYNC_EMULATE_CACHED_LOAD(NAME)            \
    template <typename T>                             \
    TMAASYNC_EMULATE_INLINE T NAME(const T* source) { \
        return *source;                               \
    }
#define TMAASYNC_EMULATE_CACHED_STORE(NAME)                                       \
    template <typename T>                                                         \
    TMAASYNC_EMULATE_INLINE void NAME(T* target, std::type_identity_t<T> value) { \
        *target = value;                                                          \
    }
TMAASYNC_EMULATE_CACHED_LOAD(__ldca)
TMAASYNC_EMULATE_CACHED_LOAD(__ldcg)
TMAASYNC_EMULATE_CACHED_LOAD(__ldcs)
TMAASYNC_EMULATE_CACHED_LOAD(__ldlu)
TMAASYNC_EMULATE_CACHED_STORE(__stwb)
TMAASYNC_EMULATE_CACHED_STORE(__stcg)
TMAASYNC_EMULATE_CACHED_STORE(__stcs)
TMAASYNC_EMULATE_CACHED_STORE(__stwt)
// A volatile access, for integers and floats.
template <typename T>
TMAASYNC_EMULATE_INLINE T __ldcv(const T* source) {
    if constexpr (std::is_arithmetic_v<T>) return *const_cast<const volatile T*>(source);
    return *source;
}
// Reads data that the whole launch only reads.
template <typename T>
TMAASYNC_EMULATE_INLINE T __ldg(const T* source) {
    tmaasync_emulate::check_only_read(source, sizeof(T));
    return *source;
}

// --- address spaces of pointers ------------------------------------------------------------------

namespace tmaasync_emulate {

TMAASYNC_EMULATE_INLINE bool is_on_stack(std::uintptr_t address) {
    return (address ^ stack_pointer()) < kStackBytes;
}

// Offset of an address in the shared memory of the calling thread's cluster, from the CTA's own.
TMAASYNC_EMULATE_INLINE std::ptrdiff_t offset_in_windows(const void* pointer) {
    return static_cast<const std::uint8_t*>(pointer) - current_thread().window;
}

TMAASYNC_EMULATE_INLINE bool is_own_shared(const void* pointer) {
    const std::ptrdiff_t offset = offset_in_windows(pointer);
    return offset >= 0 && offset < std::ptrdiff_t{kWindowStride};
}

TMAASYNC_EMULATE_INLINE bool is_shared_in_cluster(const void* pointer) {
    const Thread& thread = current_thread();
    const std::ptrdiff_t offset =
        offset_in_windows(pointer) + std::ptrdiff_t{thread.rank} * std::ptrdiff_t{kWindowStride};
    return offset >= 0 && offset < std::ptrdiff_t{thread.ctas} * std::ptrdiff_t{kWindowStride};
}

TMAASYNC_EMULATE_INLINE bool is_parameter(const void* pointer) {
    const std::uintptr_t parameters = current_thread().parameters;
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return parameters != 0 && address >= parameters && is_on_stack(address);
}

// Constant memory is global memory here, because the keywords leave no trace.
[[gnu::error(
    "the CPU back end cannot tell constant from global memory; pass arrays on a GPU"
)]] unsigned
is_constant(const void* pointer);

}  // namespace tmaasync_emulate

inline unsigned __isShared(const void* pointer) {
    return tmaasync_emulate::is_own_shared(pointer);
}
inline unsigned __isCtaShared(const void* pointer) {
    return tmaasync_emulate::is_own_shared(pointer);
}
inline unsigned __isClusterShared(const void* pointer) {
    return tmaasync_emulate::is_shared_in_cluster(pointer);
}
inline unsigned __isGridConstant(const void* pointer) {
    return tmaasync_emulate::is_parameter(pointer);
}
inline unsigned __isLocal(const void* pointer) {
    const bool is_own = tmaasync_emulate::is_on_stack(reinterpret_cast<std::uintptr_t>(pointer));
    return is_own && !tmaasync_emulate::is_parameter(pointer);
}
inline unsigned __isGlobal(const void* pointer) {
    return !tmaasync_emulate::is_shared_in_cluster(pointer) &&
           !tmaasync_emulate::is_on_stack(reinterpret_cast<std::uintptr_t>(pointer));
}
#define __isConstant(POINTER) (::tmaasync_emulate::is_constant(POINTER))

namespace tmaasync_emulate {

// The pointer to a shared address. A rank beyond the cluster leads to memory that does not exist.
TMAASYNC_EMULATE_INLINE std::uint8_t* shared_pointer(std::size_t address) {
    if (is_no_shared_address(address)) return reinterpret_cast<std::uint8_t*>(address);
    const auto window = reinterpret_cast<std::uintptr_t>(current_thread().window);
    return reinterpret_cast<std::uint8_t*>(
        window / kWindowsAlignment * kWindowsAlignment + address
    );
}

}  // namespace tmaasync_emulate

TMAASYNC_EMULATE_INLINE std::size_t __cvta_generic_to_shared(const void* pointer) {
    using namespace tmaasync_emulate;
    if (!is_shared_in_cluster(pointer)) return kNoSharedAddress;
    return reinterpret_cast<std::uintptr_t>(pointer) % kWindowsAlignment;
}
inline void* __cvta_shared_to_generic(std::size_t address) {
    return tmaasync_emulate::shared_pointer(address);
}

// In all other spaces, addresses are the values of pointers.
#define TMAASYNC_EMULATE_CVTA(SPACE)                                    \
    inline std::size_t __cvta_generic_to_##SPACE(const void* pointer) { \
        return reinterpret_cast<std::size_t>(pointer);                  \
    }                                                                   \
    inline void* __cvta_##SPACE##_to_generic(std::size_t address) {     \
        return reinterpret_cast<void*>(address);                        \
    }
TMAASYNC_EMULATE_CVTA(global)
TMAASYNC_EMULATE_CVTA(local)
TMAASYNC_EMULATE_CVTA(constant)
TMAASYNC_EMULATE_CVTA(grid_constant)
