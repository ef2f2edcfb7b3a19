// CUDA's built-ins on the CPU: the keywords, threadIdx and its kind, shared memory, shuffles,
// atomics, fences, arithmetic. The build includes this before every source. It is the second seam
// between a kernel and the CPU; the first is <tmaasync/ptx/...>, the instructions that CUDA has no
// built-in for.
#pragma once

#include <crt/host_defines.h>  // ahead of all of CUDA's headers, which would find another one

#include <vector_functions.h>
#include <vector_types.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <tmaasync_emulate/calls.hpp>
#include <tmaasync_emulate/entry.hpp>
#include <type_traits>

// Without libstdc++'s special functions, which kernels cannot call on the chip either: reading them
// takes longer than all that is above. For the same reason nothing here needs <algorithm>.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>
#include <tmaasync_emulate/intrinsics.hpp>

// What the chip's compiler defines for sm_90a.
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL

// Here and not among its kind, because the standard library's headers use the bare word.
#define __noinline__ __attribute__((noinline))

// `__shared__ alignas(128) float x[32]` is CUDA, where C++ expects the word first.
#define alignas(...) __attribute__((aligned(::tmaasync_emulate::alignment<__VA_ARGS__>())))

namespace tmaasync_emulate {

template <typename T>
constexpr std::size_t alignment() {
    return alignof(T);
}
template <std::size_t kBytes>
constexpr std::size_t alignment() {
    return kBytes;
}

}  // namespace tmaasync_emulate

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
__attribute__((constructor)) TMAASYNC_EMULATE_UNSEEN static void find_dynamic_offset() {
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

inline int __syncthreads_count(int predicate) {
    return static_cast<int>(tmaasync_emulate::count_in_block(predicate != 0));
}
inline int __syncthreads_and(int predicate) {
    return tmaasync_emulate::count_in_block(predicate == 0) == 0;
}
inline int __syncthreads_or(int predicate) {
    return tmaasync_emulate::count_in_block(predicate != 0) != 0;
}

inline void __syncwarp(unsigned mask = 0xffffffff) {
    tmaasync_emulate::sync_warp(mask);
}

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

namespace tmaasync_emulate {

// The value of each lane of the mask in turn, and the lane.
template <typename T, typename Visit>
TMAASYNC_EMULATE_INLINE void visit_lanes(uint32_t mask, T value, Visit visit) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1)
            visit(shuffle_value(mask, value, lane, true, ShuffleKind::kIndex), lane);
    }
}

template <typename T, typename Join>
TMAASYNC_EMULATE_INLINE T joined_by_warp(uint32_t mask, T value, Join join) {
    bool is_first = true;
    T result{};
    visit_lanes(mask, value, [&](T other, uint32_t) {
        result = is_first ? other : join(result, other);
        is_first = false;
    });
    return result;
}

}  // namespace tmaasync_emulate

template <typename T>
TMAASYNC_EMULATE_INLINE unsigned __match_any_sync(unsigned mask, T value) {
    unsigned equal = 0;
    tmaasync_emulate::visit_lanes(mask, value, [&](T other, unsigned lane) {
        equal |= unsigned{std::memcmp(&other, &value, sizeof(T)) == 0} << lane;
    });
    return equal;
}
template <typename T>
TMAASYNC_EMULATE_INLINE unsigned __match_all_sync(unsigned mask, T value, int* predicate) {
    *predicate = __match_any_sync(mask, value) == mask;
    return *predicate ? mask : 0;
}

#define TMAASYNC_EMULATE_REDUCE(NAME, TYPE, RESULT)                                       \
    TMAASYNC_EMULATE_INLINE TYPE __reduce_##NAME##_sync(unsigned mask, TYPE value) {      \
        return tmaasync_emulate::joined_by_warp(mask, value, [](TYPE a, TYPE b) -> TYPE { \
            return RESULT;                                                                \
        });                                                                               \
    }
TMAASYNC_EMULATE_REDUCE(add, unsigned, a + b)
TMAASYNC_EMULATE_REDUCE(
    add, int, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b))
)
TMAASYNC_EMULATE_REDUCE(min, unsigned, b < a ? b : a)
TMAASYNC_EMULATE_REDUCE(min, int, b < a ? b : a)
TMAASYNC_EMULATE_REDUCE(max, unsigned, a < b ? b : a)
TMAASYNC_EMULATE_REDUCE(max, int, a < b ? b : a)
TMAASYNC_EMULATE_REDUCE(and, unsigned, a& b)
TMAASYNC_EMULATE_REDUCE(or, unsigned, a | b)
TMAASYNC_EMULATE_REDUCE(xor, unsigned, a ^ b)

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
    tmaasync_emulate::fence(tmaasync_emulate::Scope::kSystem);
}

namespace tmaasync_emulate {

// Returns the old value. An exchange stores the same, whatever that is.
template <typename T, typename Change>
TMAASYNC_EMULATE_INLINE T change_atomically(T* address, Change change, bool depends = true) {
    static_assert(sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0, "1, 2, 4 or 8 bytes");
    T old{}, changed;
    replace_atomically(address, &old, &old, sizeof(T));  // reads it
    changed = change(old);
    begin_atomic(address, sizeof(T), std::memcmp(&old, &changed, sizeof(T)) != 0, depends);
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
    return tmaasync_emulate::change_atomically(address, [=](T) { return value; }, false);
}
template <typename T>
TMAASYNC_EMULATE_INLINE T
atomicCAS(T* address, tmaasync_emulate::Same<T> expected, tmaasync_emulate::Same<T> value) {
    return tmaasync_emulate::change_atomically(address, [=](T old) {
        return old == expected ? value : old;
    });
}

// A float at a time, as on the chip.
TMAASYNC_EMULATE_INLINE float2 atomicAdd(float2* address, float2 value) {
    return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y)};
}
TMAASYNC_EMULATE_INLINE float4 atomicAdd(float4* address, float4 value) {
    return {
        atomicAdd(&address->x, value.x),
        atomicAdd(&address->y, value.y),
        atomicAdd(&address->z, value.z),
        atomicAdd(&address->w, value.w),
    };
}

namespace tmaasync_emulate {

// While it lives, the thread's atomic operations are those of all devices.
struct SystemScope {
    TMAASYNC_EMULATE_INLINE SystemScope() { set_atomic_scope(Scope::kSystem); }
    TMAASYNC_EMULATE_INLINE ~SystemScope() { set_atomic_scope(Scope::kGpu); }
};

}  // namespace tmaasync_emulate

#define TMAASYNC_EMULATE_SCOPED(NAME)                                       \
    template <typename T, typename... Values>                               \
    TMAASYNC_EMULATE_INLINE T NAME##_block(T* address, Values... values) {  \
        return NAME(address, values...);                                    \
    }                                                                       \
    template <typename T, typename... Values>                               \
    TMAASYNC_EMULATE_INLINE T NAME##_system(T* address, Values... values) { \
        const tmaasync_emulate::SystemScope scope;                          \
        return NAME(address, values...);                                    \
    }
TMAASYNC_EMULATE_SCOPED(atomicAdd)
TMAASYNC_EMULATE_SCOPED(atomicSub)
TMAASYNC_EMULATE_SCOPED(atomicInc)
TMAASYNC_EMULATE_SCOPED(atomicDec)
TMAASYNC_EMULATE_SCOPED(atomicMin)
TMAASYNC_EMULATE_SCOPED(atomicMax)
TMAASYNC_EMULATE_SCOPED(atomicAnd)
TMAASYNC_EMULATE_SCOPED(atomicOr)
TMAASYNC_EMULATE_SCOPED(atomicXor)
TMAASYNC_EMULATE_SCOPED(atomicExch)
TMAASYNC_EMULATE_SCOPED(atomicCAS)

// --- arithmetic ----------------------------------------------------------------------------------

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}

inline void __nanosleep(unsigned) {
    tmaasync_emulate::spin("__nanosleep");
}

[[noreturn]] inline void __trap() {
    tmaasync_emulate::fail("the kernel called __trap()");
}
[[noreturn]] inline void __brkpt() {
    tmaasync_emulate::fail("the kernel called __brkpt()");
}

#if !defined(__clang__)
#define __builtin_assume(CONDITION) \
    ((CONDITION) ? void()           \
                 : tmaasync_emulate::fail("__builtin_assume(" #CONDITION ") does not hold"))
#endif

// Cycles of the CPU.
inline long long clock64() {
#if defined(__x86_64__)
    return static_cast<long long>(__builtin_ia32_rdtsc());
#else
    return clock();
#endif
}
