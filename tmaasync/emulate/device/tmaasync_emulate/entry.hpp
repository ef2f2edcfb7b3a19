// The exports of a kernel's library: its parameters, and the function that calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
// Notes the address of the parameters in the thread that the topmost word of its stack points to,
// then jumps to the kernel. It uses only registers that hold no arguments.
extern "C" __attribute__((visibility("hidden"))) void tmaasync_emulate_enter();
asm(".text\n"
    ".p2align 4\n"
    ".local tmaasync_emulate_enter\n"
    ".type tmaasync_emulate_enter, @function\n"
    "tmaasync_emulate_enter:\n"
    "    leaq 8(%rsp), %r11\n"
    "    movq %rsp, %rax\n"
    "    orq $131071, %rax\n"
    "    movq -7(%rax), %rax\n"
    "    movq %r11, (%rax)\n"
    "    jmp *tmaasync_emulate_kernel(%rip)\n"
    ".size tmaasync_emulate_enter, .-tmaasync_emulate_enter\n");
static_assert(tmaasync_emulate::kStackBytes == 131072);
static_assert(offsetof(tmaasync_emulate::Thread, parameters) == 0);
extern "C" {
__attribute__((visibility("hidden"), used)) inline void* tmaasync_emulate_kernel = nullptr;
}
#endif

namespace tmaasync_emulate {

template <typename T>
constexpr ParameterFacts facts_of() {
    if constexpr (std::is_floating_point_v<T>) {
        return {'f', sizeof(T)};
    } else if constexpr (std::is_scalar_v<T>) {
        return {'u', sizeof(T)};
    } else {
        return {'S', sizeof(T)};
    }
}

// An argument on the thread's own stack. The buffer of the arguments is not the kernel's memory,
// and a copy constructor in the kernel's library reports its reads.
template <typename T>
struct Argument {
    alignas(T) unsigned char bytes[sizeof(T)];

    TMAASYNC_EMULATE_UNSEEN explicit Argument(const void* argument) {
        __builtin_memcpy(bytes, argument, sizeof(T));
    }
    TMAASYNC_EMULATE_UNSEEN T& value() { return *reinterpret_cast<T*>(bytes); }
};

template <typename... Parameters>
struct Entry {
    static constexpr uint32_t kCount = sizeof...(Parameters);
    static constexpr ParameterFacts kFacts[kCount + 1] = {facts_of<Parameters>()..., {}};

    // The kernel itself must not be inlined into this function.
    template <void (*kKernel)(Parameters...), std::size_t... kIndex>
    TMAASYNC_EMULATE_UNSEEN static void call_with(
        void* const* arguments, std::index_sequence<kIndex...>
    ) {
#if defined(__x86_64__)
        // All host threads write the same value.
        void* const target = reinterpret_cast<void*>(kKernel);
        __atomic_store_n(&tmaasync_emulate_kernel, target, __ATOMIC_RELAXED);
        void (*volatile kernel)(Parameters...) =
            reinterpret_cast<void (*)(Parameters...)>(&tmaasync_emulate_enter);
#else
        void (*volatile kernel)(Parameters...) = kKernel;
#endif
        kernel(Argument<std::remove_cv_t<Parameters>>(arguments[kIndex]).value()...);
    }

    template <void (*kKernel)(Parameters...)>
    TMAASYNC_EMULATE_UNSEEN static void call(void* const* arguments) {
        __atomic_store_n(&has_launched, true, __ATOMIC_RELAXED);
        call_with<kKernel>(arguments, std::index_sequence_for<Parameters...>{});
    }
};

template <typename... Parameters>
Entry<Parameters...> entry_of(void (*)(Parameters...)) {
    return {};
}

}  // namespace tmaasync_emulate

// The build appends one of these to the source.
#define TMAASYNC_EMULATE_ENTRY(...) /* commas of template arguments */                      \
    extern "C" TMAASYNC_EMULATE_UNSEEN std::uint32_t tmaasync_emulate_parameters(           \
        const ::tmaasync_emulate::ParameterFacts** facts                                    \
    ) {                                                                                     \
        using Entry = decltype(::tmaasync_emulate::entry_of(&::__VA_ARGS__));               \
        *facts = Entry::kFacts;                                                             \
        return Entry::kCount;                                                               \
    }                                                                                       \
    extern "C" TMAASYNC_EMULATE_UNSEEN void tmaasync_emulate_call(void* const* arguments) { \
        using Entry = decltype(::tmaasync_emulate::entry_of(&::__VA_ARGS__));               \
        Entry::template call<&::__VA_ARGS__>(arguments);                                    \
    }
