// Functions of the C library that would end the process, corrupt its heap or keep a lock: here they
// end the launch, or stay within the kernel's own memory. Functions that write unseen are here too.
#pragma once

#include <math.h>
#include <cassert>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <tmaasync_emulate/calls.hpp>

// Marks functions of the kernel's library, for all code that it calls.
#define TMAASYNC_EMULATE_OWN __attribute__((visibility("hidden"), used)) TMAASYNC_EMULATE_UNSEEN
#define TMAASYNC_EMULATE_ENDS(DECLARATION, FAULT, NAME)                   \
    TMAASYNC_EMULATE_OWN __attribute__((noreturn)) void DECLARATION {     \
        using namespace ::tmaasync_emulate;                               \
        const Mention name = text_at(NAME);                               \
        fail_at(__builtin_return_address(0), FaultKind::FAULT, &name, 1); \
    }

extern "C" {

TMAASYNC_EMULATE_ENDS(exit(int) noexcept, kCalledExit, "exit()")
TMAASYNC_EMULATE_ENDS(_Exit(int) noexcept, kCalledExit, "_Exit()")
TMAASYNC_EMULATE_ENDS(_exit(int), kCalledExit, "_exit()")
TMAASYNC_EMULATE_ENDS(quick_exit(int) noexcept, kCalledExit, "quick_exit()")
TMAASYNC_EMULATE_ENDS(abort() noexcept, kCalled, "abort()")

TMAASYNC_EMULATE_OWN __attribute__((noreturn)) void __stack_chk_fail() {
    using namespace ::tmaasync_emulate;
    fail_at(__builtin_return_address(0), FaultKind::kLocalArray);
}

TMAASYNC_EMULATE_OWN __attribute__((noreturn)) void __assert_fail(
    const char* condition, const char*, unsigned, const char*
) noexcept {
    using namespace ::tmaasync_emulate;
    const Mention facts[] = {text_at("assert"), text_at(condition)};
    fail_at(__builtin_return_address(0), FaultKind::kAssertion, facts, 2);
}

// Objects with static storage are never destroyed: no thread of a kernel would do it.
TMAASYNC_EMULATE_OWN int __cxa_atexit(void (*)(void*), void*, void*) noexcept {
    return 0;
}

// printf takes no lock while it reads the memory of its arguments.
TMAASYNC_EMULATE_OWN int printf(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (length < 0) return length;
    const auto written = static_cast<std::size_t>(length);
    std::fwrite(text, 1, written < sizeof(text) ? written : sizeof(text) - 1, stdout);
    return length;
}

TMAASYNC_EMULATE_OWN void* malloc(std::size_t bytes) noexcept {
    return ::tmaasync_emulate::allocate(bytes);
}
TMAASYNC_EMULATE_OWN void free(void* memory) noexcept {
    ::tmaasync_emulate::release(__builtin_return_address(0), memory);
}

}  // extern "C"

namespace tmaasync_emulate {

template <typename T>
TMAASYNC_EMULATE_INLINE TMAASYNC_EMULATE_UNSEEN void put(const void* site, T* to, T value) {
    if (has_launched) touch(site, to, sizeof(T), AccessKind::kWrite, true);
    *to = value;
}

}  // namespace tmaasync_emulate

// mathematics.hpp gives these names to sincosf, modff and so on.
#define TMAASYNC_EMULATE_SINES(T, NAME)                                          \
    extern "C" TMAASYNC_EMULATE_OWN void tmaasync_emulate_##NAME(                \
        T x, T* sine, T* cosine                                                  \
    ) noexcept {                                                                 \
        T values[2];                                                             \
        ::NAME(x, &values[0], &values[1]);                                       \
        ::tmaasync_emulate::put(__builtin_return_address(0), sine, values[0]);   \
        ::tmaasync_emulate::put(__builtin_return_address(0), cosine, values[1]); \
    }
#define TMAASYNC_EMULATE_PARTS(T, NAME, PART)                                             \
    extern "C" TMAASYNC_EMULATE_OWN T tmaasync_emulate_##NAME(T x, PART* part) noexcept { \
        PART value;                                                                       \
        const T result = ::NAME(x, &value);                                               \
        ::tmaasync_emulate::put(__builtin_return_address(0), part, value);                \
        return result;                                                                    \
    }
#define TMAASYNC_EMULATE_QUOTIENT(T, NAME)                                                        \
    extern "C" TMAASYNC_EMULATE_OWN T tmaasync_emulate_##NAME(T x, T y, int* quotient) noexcept { \
        int value;                                                                                \
        const T result = ::NAME(x, y, &value);                                                    \
        ::tmaasync_emulate::put(__builtin_return_address(0), quotient, value);                    \
        return result;                                                                            \
    }
TMAASYNC_EMULATE_SINES(float, sincosf)
TMAASYNC_EMULATE_SINES(double, sincos)
TMAASYNC_EMULATE_PARTS(float, modff, float)
TMAASYNC_EMULATE_PARTS(double, modf, double)
TMAASYNC_EMULATE_PARTS(float, frexpf, int)
TMAASYNC_EMULATE_PARTS(double, frexp, int)
TMAASYNC_EMULATE_QUOTIENT(float, remquof)
TMAASYNC_EMULATE_QUOTIENT(double, remquo)

TMAASYNC_EMULATE_OWN void* operator new(std::size_t bytes) {
    return ::tmaasync_emulate::allocate(bytes);
}
TMAASYNC_EMULATE_OWN void* operator new[](std::size_t bytes) {
    return ::tmaasync_emulate::allocate(bytes);
}
TMAASYNC_EMULATE_OWN void operator delete(void* memory) noexcept {
    ::tmaasync_emulate::release(__builtin_return_address(0), memory);
}
TMAASYNC_EMULATE_OWN void operator delete[](void* memory) noexcept {
    ::tmaasync_emulate::release(__builtin_return_address(0), memory);
}
TMAASYNC_EMULATE_OWN void operator delete(void* memory, std::size_t) noexcept {
    ::tmaasync_emulate::release(__builtin_return_address(0), memory);
}
TMAASYNC_EMULATE_OWN void operator delete[](void* memory, std::size_t) noexcept {
    ::tmaasync_emulate::release(__builtin_return_address(0), memory);
}
