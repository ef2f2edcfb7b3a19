// CUDA's built-ins on the CPU: the keywords, threadIdx and similar variables, and shared memory.
// Included headers have the functions, a section of CUDA's guides each. The build includes this
// header before every source. It is the second seam between a kernel and the CPU. The first is
// <tmaasync/ptx/...>: instructions without a CUDA built-in.
//
// Templates that plain functions of these headers call return auto: they are instantiated where
// they are called, once in the precompiled header. Others are instantiated again for every
// kernel: with them, a small kernel took 0.2 s instead of 0.15 s (g++ 12, 2026-11-30).
#pragma once

#include <crt/host_defines.h>  // before all CUDA headers, which would find another one

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

// Leaves out libstdc++'s special functions, which kernels cannot call on the chip either: they take
// longer to compile than everything above. For the same reason nothing here needs <algorithm>.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <math.h>  // not <cmath>: as in CUDA, exp(x) of a float is a float without `std::` too
#include <tmaasync_emulate/float_pairs.hpp>
#include <tmaasync_emulate/intrinsics.hpp>

// NVRTC has none of these macros of <math.h>, and CUTLASS has enumerators of these names.
#undef FP_NAN
#undef FP_INFINITE
#undef FP_ZERO
#undef FP_SUBNORMAL
#undef FP_NORMAL

// The macros that NVRTC defines for the chip, whose __CUDA_ARCH__ the build passes as
// TMAASYNC_EMULATE_ARCH. The headers above, and CUDA's headers of number types, are compiled for
// the host.
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 0
#define __CUDA_API_VER_MAJOR__ 13
#define __CUDA_ARCH__ TMAASYNC_EMULATE_ARCH
#define __CUDA_ARCH_LIST__ TMAASYNC_EMULATE_ARCH
#define __CUDA_ARCH_SPECIFIC__ TMAASYNC_EMULATE_ARCH
#define __CUDA_ARCH_FAMILY_SPECIFIC__ TMAASYNC_EMULATE_ARCH
#if TMAASYNC_EMULATE_ARCH == 900
#define __CUDA_ARCH_FEAT_SM90_ALL
#elif TMAASYNC_EMULATE_ARCH == 1000
#define __CUDA_ARCH_FEAT_SM100_ALL
#elif TMAASYNC_EMULATE_ARCH == 1030
#define __CUDA_ARCH_FEAT_SM103_ALL
#elif TMAASYNC_EMULATE_ARCH == 1200
#define __CUDA_ARCH_FEAT_SM120_ALL
#endif
#define __CUDA_FTZ 0
#define __CUDA_PREC_DIV 1
#define __CUDA_PREC_SQRT 1

// Defined here and not with the other keywords, because the standard library's headers use the bare
// word.
#define __noinline__ __attribute__((noinline))

// CUDA accepts `__shared__ alignas(128) float x[32]`, where C++ expects alignas first.
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

// `__shared__` makes a variable thread_local, `extern` or not. The compiler calls __tls_get_addr
// for its address, and the function below returns an address in the CTA's memory: first the memory
// that all `extern __shared__` arrays share, then static variables. As in CUDA, none is
// constructed: the constructors' guard variables count as set (runtime/guards.hpp).
#define __shared__ thread_local __attribute__((used))

extern "C" {
struct tmaasync_emulate_tls_index {
    std::size_t module;
    std::size_t offset;
};
__attribute__((visibility("hidden"))) void* __tls_get_addr(tmaasync_emulate_tls_index*);
}

namespace tmaasync_emulate {

// Initialised data come first, so that no other variable has the offset 0. Static variables begin
// after the bytes that the chip reserves, and the linker sorts them by alignment.
alignas(1024) __attribute__((used)) static thread_local char first_variable[1024] = {1};

// The replacement of every `extern __shared__` array (dynamic_shared.py). It has the maximum size,
// because the compiler relies on the size. This thread_local memory is never allocated, and its
// alignment puts it after the static variables.
alignas(1) thread_local unsigned char dynamic_memory[kMaxDynamicBytes];

constexpr std::size_t kUnknown = ~std::size_t{0};
static std::size_t dynamic_offset = kUnknown;

}  // namespace tmaasync_emulate

#if defined(TMAASYNC_EMULATE_POSITION_VARIABLES)
#include <tmaasync_emulate/position.hpp>
#endif

namespace tmaasync_emulate {

// Finds the array's offset among the thread_local variables once, when the library is loaded.
__attribute__((constructor)) TMAASYNC_EMULATE_UNSEEN static void find_dynamic_offset() {
#if defined(TMAASYNC_EMULATE_POSITION_VARIABLES)
    find_position_offsets();
#endif
    dynamic_offset = reinterpret_cast<std::size_t>(&dynamic_memory);
}

}  // namespace tmaasync_emulate

extern "C" __attribute__((used)) TMAASYNC_EMULATE_UNSEEN void* __tls_get_addr(
    tmaasync_emulate_tls_index* index
) {
    using namespace tmaasync_emulate;
    if (dynamic_offset == kUnknown) return reinterpret_cast<void*>(index->offset);
    const Thread& thread = current_thread();
    if (index->offset == dynamic_offset) return thread.window;
#if defined(TMAASYNC_EMULATE_POSITION_VARIABLES)
    if (void* position = position_at(index->offset)) return position;
#endif
    *thread.has_static_shared = true;
    const std::size_t skipped = index->offset > dynamic_offset ? kMaxDynamicBytes : 0;
    return thread.window + thread.static_offset + index->offset - skipped;
}

// --- position of a thread ------------------------------------------------------------------------

#if !defined(TMAASYNC_EMULATE_POSITION_VARIABLES)
#define threadIdx (::tmaasync_emulate::current_thread().thread)
#define blockIdx (::tmaasync_emulate::current_thread().block)
#define blockDim (::tmaasync_emulate::current_thread().block_dim)
#define gridDim (::tmaasync_emulate::current_thread().grid_dim)
#define warpSize 32
#endif

// --- the rest ------------------------------------------------------------------------------------

inline void __nanosleep(unsigned) {
    tmaasync_emulate::spin("__nanosleep");
}

[[noreturn]] TMAASYNC_EMULATE_INLINE void __trap() {
    const tmaasync_emulate::Mention name = tmaasync_emulate::text_at("__trap()");
    tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kCalled, &name, 1);
}
[[noreturn]] TMAASYNC_EMULATE_INLINE void __brkpt() {
    const tmaasync_emulate::Mention name = tmaasync_emulate::text_at("__brkpt()");
    tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kCalled, &name, 1);
}
// Counts an event for a profiler.
inline void __prof_trigger(int) {}

#if !defined(__clang__)
[[noreturn]] TMAASYNC_EMULATE_INLINE void __tmaasync_assume_fail(const char* condition) {
    using namespace tmaasync_emulate;
    const Mention facts[] = {text_at("__builtin_assume"), text_at(condition)};
    fail(FaultKind::kAssertion, facts, 2);
}
#define __builtin_assume(CONDITION) ((CONDITION) ? void() : __tmaasync_assume_fail(#CONDITION))
#endif

// Counts cycles of the CPU.
inline long long clock64() {
#if defined(__x86_64__)
    return static_cast<long long>(__builtin_ia32_rdtsc());
#else
    return clock();
#endif
}

// The device runtime's names of griddepcontrol.
inline void cudaGridDependencySynchronize() {
    tmaasync_emulate::wait_for_grids();
}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
