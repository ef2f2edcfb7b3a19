// Crashes of a kernel in the processor or the C library: the launch fails, and the process
// survives.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>
#include <unwind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tmaasync_emulate/calls.hpp>

#include "host/signal_handler.hpp"

namespace tmaasync_emulate {

// --- where a thread of the host is ---------------------------------------------------------------

// The interrupted instruction's address and the stack pointer; 0 on an unknown processor.
struct Interrupted {
    uintptr_t code = 0;
    uintptr_t stack = 0;
};

inline Interrupted interrupted_at(const void* context) {
    const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    return {
        static_cast<uintptr_t>(machine.gregs[REG_RIP]),
        static_cast<uintptr_t>(machine.gregs[REG_RSP]),
    };
#elif defined(__aarch64__)
    return {static_cast<uintptr_t>(machine.pc), static_cast<uintptr_t>(machine.sp)};
#else
    (void)machine;
    return {};
#endif
}

// --- crashes -------------------------------------------------------------------------------------

// A signal and its origin.
struct Crash {
    int number = 0;
    uintptr_t address = 0;  // the accessed address
    uintptr_t code = 0;
    uintptr_t stack = 0;
    // Return addresses, innermost first, as far as unwinding leads; then zeros.
    std::array<uintptr_t, 32> callers{};
};

// The handler's state, at the start of its own stack: where to resume, and the crash.
struct CrashSite {
    static constexpr uint64_t kMark = 0x746d616173796e63;

    uint64_t mark = kMark;
    sigjmp_buf resume;
    Crash crash;
    bool is_armed = false;
    bool is_unwinding = false;
};

class CrashGuard {
public:
    // Gives the calling host thread a stack for signal handlers.
    CrashGuard() : stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
        site_ = new (stack_.get()) CrashSite;
        const stack_t mine{.ss_sp = stack_.get(), .ss_flags = 0, .ss_size = kStackBytes};
        sigaltstack(&mine, &before_);
    }
    ~CrashGuard() { sigaltstack(&before_, nullptr); }
    CrashGuard(const CrashGuard&) = delete;
    CrashGuard& operator=(const CrashGuard&) = delete;

    CrashSite& site() { return *site_; }

private:
    static constexpr std::size_t kStackBytes = 64 * 1024;

    std::unique_ptr<std::byte[]> stack_;
    CrashSite* site_;
    stack_t before_{};
};

// Installed while a launch runs. Crashes outside a kernel go to the previous handler.
class CrashHandler {
private:
    static void handle(int number, siginfo_t* info, void* context) {
        stack_t stack{};
        sigaltstack(nullptr, &stack);
        auto* site = static_cast<CrashSite*>(stack.ss_sp);
        if (site && site->mark == CrashSite::kMark && site->is_armed) {
            if (!site->is_unwinding) {
                const Interrupted at = interrupted_at(context);
                const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
                site->crash = {number, address, at.code, at.stack};
                site->is_unwinding = true;
                // A stack that cannot be unwound crashes into this handler again.
                unwind(site->crash);
            }
            site->is_unwinding = false;
            site->is_armed = false;
            siglongjmp(site->resume, 1);
        }
        SignalHandler::pass_on_crash(number, info, context);
    }

    static void unwind(Crash& crash) {
        struct Unwound {
            Crash& crash;
            std::size_t frames = 0;
        } unwound{crash};
        _Unwind_Backtrace(
            [](_Unwind_Context* frame, void* data) {
                auto& unwound = *static_cast<Unwound*>(data);
                auto& callers = unwound.crash.callers;
                callers[unwound.frames++] = _Unwind_GetIP(frame);
                return unwound.frames < callers.size() ? _URC_NO_REASON : _URC_END_OF_STACK;
            },
            &unwound
        );
    }

    SignalHandler segments_{SIGSEGV, &handle};
    SignalHandler buses_{SIGBUS, &handle};
    SignalHandler arithmetic_{SIGFPE, &handle};
    SignalHandler instructions_{SIGILL, &handle};
    SignalHandler traps_{SIGTRAP, &handle};
    SignalHandler aborts_{SIGABRT, &handle};
};

}  // namespace tmaasync_emulate
