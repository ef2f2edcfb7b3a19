// CUDA's built-ins on the CPU: the keywords, threadIdx and its kind, shared memory, shuffles,
// atomics, fences, arithmetic. The build includes this before every source. It is the second seam
// between a kernel and the CPU; the first is <tmaasync/ptx/...>, the instructions that CUDA has no
// built-in for.
#pragma once

#include <crt/host_defines.h>  // ahead of all of CUDA's headers, which would find another one

#include <vector_functions.h>
#include <vector_types.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <tmaasync_emulate/calls.hpp>
#include <tmaasync_emulate/entry.hpp>
#include <type_traits>

// Without libstdc++'s special functions, which kernels cannot call on the chip either: reading them
// takes longer than all that is above. For the same reason nothing here needs <algorithm>.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>

// Here and not among its kind, because the standard library's headers use the bare word.
#define __noinline__ __attribute__((noinline))

// --- shared memory -------------------------------------------------------------------------------

// `__shared__` turns a variable, `extern` or not, into a thread_local one. The compiler calls
// __tls_get_addr for its address, and the function below returns one in the CTA's memory: first the
// memory that all `extern __shared__` arrays share, then static variables.
#define __shared__ thread_local

// The build writes one of these for every `extern __shared__` array of the source: all of them are
// the same memory.
#define TMAASYNC_EMULATE_DYNAMIC_SHARED(NAME) \
    asm(".globl " #NAME "\n.set " #NAME ", _ZN8tmaasync23tmaasync_dynamic_sharedE\n");

extern "C" {
struct tmaasync_emulate_tls_index {
    std::size_t module;
    std::size_t offset;
};
__attribute__((visibility("hidden"))) void* __tls_get_addr(tmaasync_emulate_tls_index*);
}

namespace tmaasync_emulate {

// Initialised data come first, so that no other variable has the offset 0.
__attribute__((used)) static thread_local std::size_t first_variable = 1;

}  // namespace tmaasync_emulate

namespace tmaasync {

// As large as it can be: the compiler believes the size. This thread_local memory is never
// allocated.
alignas(
    1024
) thread_local unsigned char tmaasync_dynamic_shared[::tmaasync_emulate::kMaxDynamicBytes];

}  // namespace tmaasync

namespace tmaasync_emulate {

constexpr std::size_t kUnknown = ~std::size_t{0};
static std::size_t dynamic_offset = kUnknown;

// Asked once, when the library is loaded: where the array lies among the thread_local variables.
__attribute__((constructor)) static void find_dynamic_offset() {
    dynamic_offset = reinterpret_cast<std::size_t>(&tmaasync::tmaasync_dynamic_shared);
}

}  // namespace tmaasync_emulate

extern "C" __attribute__((used)) TMAASYNC_EMULATE_UNSEEN void* __tls_get_addr(
    tmaasync_emulate_tls_index* index
) {
    using namespace tmaasync_emulate;
    if (dynamic_offset == kUnknown) return reinterpret_cast<void*>(index->offset);
    const Thread& thread = current_thread();
    if (index->offset == dynamic_offset) return thread.window;
    *thread.has_static_shared = true;
    const std::size_t skipped = index->offset > dynamic_offset ? kMaxDynamicBytes : 0;
    return thread.window + thread.static_offset + index->offset - skipped;
}

inline std::size_t __cvta_generic_to_shared(const void* pointer) {
    const auto offset =
        static_cast<const std::uint8_t*>(pointer) - tmaasync_emulate::current_thread().window;
    if (offset < 0 || offset >= std::ptrdiff_t{tmaasync_emulate::kWindowBytes}) {
        tmaasync_emulate::fail(
            "a pointer was taken for an address in the CTA's shared memory and points "
            "elsewhere. Declare the object in shared memory"
        );
    }
    return static_cast<std::size_t>(offset);
}

// With -fsanitize=thread the runtime sees loads and stores, and these are calls instead.
#if defined(__SANITIZE_THREAD__)
#define TMAASYNC_EMULATE_SEES_ACCESSES
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TMAASYNC_EMULATE_SEES_ACCESSES
#endif
#endif
#ifdef TMAASYNC_EMULATE_SEES_ACCESSES
extern "C" {
void* tmaasync_emulate_copy(void* to, const void* from, std::size_t bytes);
void* tmaasync_emulate_fill(void* to, int value, std::size_t bytes);
__attribute__((visibility("hidden"), used)) void* memcpy(
    void* to, const void* from, std::size_t bytes
) noexcept {
    return tmaasync_emulate_copy(to, from, bytes);
}
__attribute__((visibility("hidden"), used)) void* memmove(
    void* to, const void* from, std::size_t bytes
) noexcept {
    return tmaasync_emulate_copy(to, from, bytes);
}
__attribute__((visibility("hidden"), used)) void* memset(
    void* to, int value, std::size_t bytes
) noexcept {
    return tmaasync_emulate_fill(to, value, bytes);
}
}
#endif

// --- where a thread is ---------------------------------------------------------------------------

#define threadIdx (::tmaasync_emulate::current_thread().thread)
#define blockIdx (::tmaasync_emulate::current_thread().block)
#define blockDim (::tmaasync_emulate::current_thread().block_dim)
#define gridDim (::tmaasync_emulate::current_thread().grid_dim)
#define warpSize 32

// --- what threads do together --------------------------------------------------------------------

inline void __syncthreads() {
    tmaasync_emulate::named_barrier_sync(0, 0);
}

inline void __syncwarp(unsigned mask = 0xffffffff) {
    tmaasync_emulate::sync_warp(mask);
}

// So that the runtime finds the kernel's own line where the call returns to.
#define TMAASYNC_EMULATE_INLINE inline __attribute__((always_inline))

namespace tmaasync_emulate {

template <typename T>
TMAASYNC_EMULATE_INLINE T
shuffle_value(uint32_t mask, T value, uint32_t source, bool is_inside, ShuffleKind kind) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    word = shuffle(mask, word, is_inside ? source : current_thread().lane, kind);
    std::memcpy(&value, &word, sizeof(T));
    return value;
}

}  // namespace tmaasync_emulate

template <typename T>
TMAASYNC_EMULATE_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int lane = static_cast<int>(tmaasync_emulate::current_thread().lane);
    const int first = lane / width * width;
    return tmaasync_emulate::shuffle_value(
        mask, value, static_cast<unsigned>(first + (source & (width - 1))), true,
        tmaasync_emulate::ShuffleKind::kIndex
    );
}

template <typename T>
TMAASYNC_EMULATE_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = static_cast<int>(tmaasync_emulate::current_thread().lane);
    const int source = lane - static_cast<int>(delta);
    const bool is_inside = source >= lane / width * width;
    return tmaasync_emulate::shuffle_value(
        mask, value, static_cast<unsigned>(source), is_inside, tmaasync_emulate::ShuffleKind::kUp
    );
}

template <typename T>
TMAASYNC_EMULATE_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = static_cast<int>(tmaasync_emulate::current_thread().lane);
    const int source = lane + static_cast<int>(delta);
    const bool is_inside = source < lane / width * width + width;
    return tmaasync_emulate::shuffle_value(
        mask, value, static_cast<unsigned>(source), is_inside, tmaasync_emulate::ShuffleKind::kDown
    );
}

template <typename T>
TMAASYNC_EMULATE_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    const int lane = static_cast<int>(tmaasync_emulate::current_thread().lane);
    const int source = lane ^ lanes;
    const bool is_inside = source < lane / width * width + width;
    return tmaasync_emulate::shuffle_value(
        mask, value, static_cast<unsigned>(source), is_inside, tmaasync_emulate::ShuffleKind::kXor
    );
}

TMAASYNC_EMULATE_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
    return tmaasync_emulate::ballot(mask, predicate != 0);
}
TMAASYNC_EMULATE_INLINE int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
TMAASYNC_EMULATE_INLINE int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, !predicate) == 0;
}

inline unsigned __activemask() {
    return *tmaasync_emulate::current_thread().live_lanes;
}

// --- memory --------------------------------------------------------------------------------------

inline void __threadfence() {
    tmaasync_emulate::fence(tmaasync_emulate::Scope::kGpu);
}
inline void __threadfence_block() {
    tmaasync_emulate::fence(tmaasync_emulate::Scope::kCta);
}
inline void __threadfence_system() {
    tmaasync_emulate::fence(tmaasync_emulate::Scope::kGpu);
}

namespace tmaasync_emulate {

// Returns the old value. In line, so that what it calls returns to the kernel's own line.
template <typename T, typename Change>
__attribute__((always_inline)) inline T change_atomically(T* address, Change change) {
    static_assert(sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0, "1, 2, 4 or 8 bytes");
    T old{}, changed;
    replace_atomically(address, &old, &old, sizeof(T));  // reads it
    changed = change(old);
    begin_atomic(address, sizeof(T), std::memcmp(&old, &changed, sizeof(T)) != 0);
    do {
        changed = change(old);
    } while (!replace_atomically(address, &old, &changed, sizeof(T)));
    end_atomic(std::memcmp(&old, &changed, sizeof(T)) != 0);
    return old;
}

template <typename T>
using Same = std::type_identity_t<T>;

}  // namespace tmaasync_emulate

template <typename T>
TMAASYNC_EMULATE_INLINE T atomicAdd(T* address, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) { return T(old + value); });
}
template <typename T>
TMAASYNC_EMULATE_INLINE T atomicSub(T* address, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) { return T(old - value); });
}
TMAASYNC_EMULATE_INLINE unsigned atomicInc(unsigned* address, unsigned last) {
    return tmaasync_emulate::change_atomically(address, [=](unsigned old) {
        return old >= last ? 0 : old + 1;
    });
}
TMAASYNC_EMULATE_INLINE unsigned atomicDec(unsigned* address, unsigned last) {
    return tmaasync_emulate::change_atomically(address, [=](unsigned old) {
        return old == 0 || old > last ? last : old - 1;
    });
}
template <typename T>
TMAASYNC_EMULATE_INLINE T atomicMin(T* address, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) {
        return value < old ? value : old;
    });
}
template <typename T>
TMAASYNC_EMULATE_INLINE T atomicMax(T* address, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) {
        return old < value ? value : old;
    });
}
template <typename T>
TMAASYNC_EMULATE_INLINE T atomicAnd(T* address, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) { return T(old & value); });
}
template <typename T>
TMAASYNC_EMULATE_INLINE T atomicOr(T* address, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) { return T(old | value); });
}
template <typename T>
TMAASYNC_EMULATE_INLINE T atomicXor(T* address, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) { return T(old ^ value); });
}
template <typename T>
TMAASYNC_EMULATE_INLINE T atomicExch(T* address, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T) { return value; });
}
template <typename T>
TMAASYNC_EMULATE_INLINE T
atomicCAS(T* address, tmaasync_emulate::Same<T> expected, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) {
        return old == expected ? value : old;
    });
}

// --- arithmetic ----------------------------------------------------------------------------------

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}

inline int __popc(unsigned word) {
    return std::popcount(word);
}
inline int __clz(int word) {
    return std::countl_zero(static_cast<unsigned>(word));
}
inline int __ffs(int word) {
    return __builtin_ffs(word);
}
// Four of the eight bytes of two words, by the low three bits of each digit of the selector; the
// fourth asks for the byte's sign.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    unsigned word = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned digit = selector >> 4 * i;
        word |= static_cast<unsigned>(both >> (digit & 7) * 8 & 0xff) << 8 * i;
    }
    return word;
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __expf(float x) {
    return std::exp(x);
}
inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}
inline float __int_as_float(int word) {
    return std::bit_cast<float>(word);
}
inline int __float_as_int(float value) {
    return std::bit_cast<int>(value);
}
inline float __uint_as_float(unsigned word) {
    return std::bit_cast<float>(word);
}
inline unsigned __float_as_uint(float value) {
    return std::bit_cast<unsigned>(value);
}

inline void __nanosleep(unsigned) {
    tmaasync_emulate::spin("__nanosleep");
}

[[noreturn]] inline void __trap() {
    tmaasync_emulate::fail("the kernel called __trap()");
}
