// The switch between the stacks of CUDA threads, which run as fibers.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>
#include <tmaasync_emulate/calls.hpp>

#if !defined(__x86_64__)
#endif

namespace tmaasync_emulate {

// Words at the top of each stack that do not belong to the kernel.
constexpr std::size_t kStackWords = 3;

// --- the switch ----------------------------------------------------------------------------------

#if defined(__x86_64__)

using Context = void*;

// Saves the callee-saved registers on the old stack, and restores those on the new one.
extern "C" void tmaasync_emulate_switch(Context* from, Context to);
asm(".text\n"
    ".p2align 4\n"
    ".local tmaasync_emulate_switch\n"
    ".type tmaasync_emulate_switch, @function\n"
    "tmaasync_emulate_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size tmaasync_emulate_switch, .-tmaasync_emulate_switch\n");

inline void switch_context(Context& from, Context& to) {
    tmaasync_emulate_switch(&from, to);
}

inline void start_context(Context& context, std::byte* stack, void (*entry)()) {
    // Above the frame are the slot of current_thread and two words. The lower of them is entry's
    // return address, so that the stack is aligned as after a call.
    auto* top = reinterpret_cast<void**>(stack + kStackBytes) - kStackWords;
    *top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    constexpr int kSavedRegisters = 6;
    for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
    context = top;
}

#else

using Context = ucontext_t;

inline void switch_context(Context& from, Context& to) {
    swapcontext(&from, &to);
}

inline void start_context(Context& context, std::byte* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStackBytes - 64;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

#endif

// True while this host thread runs a CUDA thread.
inline thread_local bool on_fiber = false;

inline bool is_on_fiber() {
    return on_fiber;
}

}  // namespace tmaasync_emulate
