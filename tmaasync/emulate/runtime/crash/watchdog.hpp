// Kernels that run for ever: the launch is stopped, and the process survives.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tmaasync_emulate/calls.hpp>

#include "crash/crash.hpp"
#include "host/context.hpp"
#include "host/interrupts.hpp"
#include "schedule/loops.hpp"

namespace tmaasync_emulate {

// --- the state of a thread -----------------------------------------------------------------------

// Hash of a thread's registers and stack; none on an unknown processor.
inline std::optional<uint64_t> state_of(const void* context) {
#if defined(__x86_64__)
    constexpr uintptr_t kRedZone = 128, kGuardBytes = 4096;
    const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
    if (!machine.fpregs) return std::nullopt;
    const auto general = reinterpret_cast<uintptr_t>(&machine.gregs[REG_R8]);
    const auto vectors = reinterpret_cast<uintptr_t>(&machine.fpregs->_xmm);
    const auto stack = static_cast<uintptr_t>(machine.gregs[REG_RSP]);
    uint64_t state = hash_of(general, general + (REG_RIP + 1 - REG_R8) * sizeof(greg_t), 0);
    state = hash_of(vectors, vectors + sizeof(machine.fpregs->_xmm), state);
    const uintptr_t low = std::max(stack - kRedZone, (stack & ~(kStackBytes - 1)) + kGuardBytes);
    return hash_of(low, stack | (kStackBytes - 1), state);
#else
    (void)context;
    return std::nullopt;
#endif
}

// --- the watchdog --------------------------------------------------------------------------------

// Counts its thread's processor seconds in which `progress` stays the same. When the budget is
// spent, or a signal ends the launch, `is_spent` is true for the scheduler. A thread of the kernel
// that never comes back to the scheduler is left by a jump to the crash site, but only out of the
// kernel's own code: the C library or the runtime may hold a lock, and is allowed to finish. A
// thread that is proven to loop for ever is left at once, whatever the budget.
class Watchdog {
public:
    // Values that sigsetjmp returns.
    static constexpr int kJump = 2;
    static constexpr int kEndless = 3;

    Watchdog(
        double budget_seconds,
        const Array& kernel,
        CrashSite& site,
        const uint64_t& progress,
        LoopWatch& watch,
        const Stop* stop
    )
        : period_(std::min(kTickSeconds, budget_seconds / kTicks)),
          max_ticks_(budget_seconds / period_),
          kernel_(kernel),
          site_(site),
          progress_(progress),
          watch_(watch),
          stop_(stop) {
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = kSignal;
        event.sigev_value.sival_ptr = this;
        event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
        // The thread's own clock: a machine that stalls spends no budget.
        is_armed_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
        repeat_every(period_);
    }
    // A pending signal arrives before the call returns, so none is left over.
    ~Watchdog() {
        if (is_armed_) timer_delete(timer_);
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    bool is_spent() const { return is_spent_; }

    // Lives while a launch runs. By default SIGURG does nothing, should one come late.
    class Handler {
    public:
        Handler() : handler_(kSignal, &handle) {}

    private:
        SignalHandler handler_;
    };

private:
    static constexpr int kSignal = SIGURG;
    static constexpr int kTicks = 8;               // a budget lasts at least this many ticks
    static constexpr double kTickSeconds = 20e-3;  // the handler takes 3 us of each (2026-11-22)
    static constexpr double kRetrySeconds = 1e-3;

    static void handle(int number, siginfo_t* info, void* context) {
        if (info->si_code == SI_TIMER) {
            static_cast<Watchdog*>(info->si_value.sival_ptr)->tick(context);
            return;
        }
        SignalHandler::pass_on(number, info, context);
    }

    void tick(const void* context) {
        const uintptr_t address = interrupted_at(context).code;
        const bool is_in_kernel = site_.is_armed && is_on_fiber() && kernel_.holds(address, 1);
        if (is_in_kernel && repeats(context)) jump(kEndless, context);
        watch_.begin();
        if (!*stop_ && Interrupts::count() == interrupts_) {
            if (progress_ != seen_) {
                seen_ = progress_;
                ticks_ = 0;
                return;
            }
            if (++ticks_ < max_ticks_) return;
        }
        // The scheduler is asked first: threads may loop through it without progress.
        const bool was_asked = is_spent_;
        is_spent_ = true;
        if (was_asked && is_in_kernel) jump(kJump, context);
        repeat_every(kRetrySeconds);
    }

    // True if the thread's registers and stack have been the same before.
    bool repeats(const void* context) {
        const auto state = state_of(context);
        return state && watch_.repeats_tick(*state);
    }

    [[noreturn]] void jump(int how, const void* context) {
        const Interrupted at = interrupted_at(context);
        site_.is_armed = false;
        site_.crash = {.code = at.code, .stack = at.stack};
        siglongjmp(site_.resume, how);
    }

    // Sets the timer. The handler may call it.
    void repeat_every(double seconds) {
        const auto whole = static_cast<time_t>(seconds);
        const auto nanoseconds = static_cast<long>((seconds - static_cast<double>(whole)) * 1e9);
        const timespec period{whole, std::max(nanoseconds, 1000L)};
        const itimerspec times{period, period};
        if (is_armed_) timer_settime(timer_, 0, &times, nullptr);
    }

    const double period_;
    const double max_ticks_;  // most ticks without progress
    const Array& kernel_;     // code of the kernel that runs
    CrashSite& site_;
    const volatile uint64_t& progress_;
    LoopWatch& watch_;
    const Stop* stop_;
    const uint32_t interrupts_ = Interrupts::count();
    uint64_t seen_ = 0;
    double ticks_ = 0;
    volatile bool is_spent_ = false;
    bool is_armed_ = false;
    timer_t timer_{};
};

}  // namespace tmaasync_emulate
