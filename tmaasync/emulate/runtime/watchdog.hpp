// A kernel that runs on and on: the launch is stopped, and the process survives.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include "crash.hpp"
#include "races.hpp"
#include "signal_handler.hpp"

namespace tmaasync_emulate {

// --- the watchdog --------------------------------------------------------------------------------

// Counts the processor seconds of the thread that makes it in which `progress` stays the same. When
// the budget is spent, `is_spent` is true for the scheduler. A thread of the kernel that never
// comes back to the scheduler is left by a jump to the crash site, but out of the kernel's own code
// only: whatever else it has called, the C library or the runtime, may hold a lock, and is let
// finish.
class Watchdog {
public:
    static constexpr int kJump = 2;  // what sigsetjmp returns

    Watchdog(double budget_seconds, const Array& kernel, CrashSite& site, const uint64_t& progress)
        : kernel_(kernel), site_(site), progress_(progress) {
        if (!std::isfinite(budget_seconds)) return;
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = kSignal;
        event.sigev_value.sival_ptr = this;
        event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
        // This thread's own clock: a machine that stalls spends no budget.
        is_armed_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
        repeat_every(budget_seconds / kTicks);
    }
    // A signal to this thread arrives on the way out of the call: none is left over.
    ~Watchdog() {
        if (is_armed_) timer_delete(timer_);
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    bool is_spent() const { return is_spent_; }

    // While a launch runs. SIGURG does nothing by default, should one come late.
    class Handler {
    public:
        Handler() : handler_(kSignal, &handle) {}

    private:
        SignalHandler handler_;
    };

private:
    static constexpr int kSignal = SIGURG;
    static constexpr int kTicks = 8;
    static constexpr double kRetrySeconds = 1e-3;

    static void handle(int number, siginfo_t* info, void* context) {
        if (info->si_code == SI_TIMER) {
            static_cast<Watchdog*>(info->si_value.sival_ptr)->tick(interrupted_at(context).code);
            return;
        }
        const struct sigaction& before = SignalHandler::before(number);
        if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
        if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(number);
    }

    void tick(uintptr_t address) {
        if (progress_ != seen_) {
            seen_ = progress_;
            ticks_ = 0;
            return;
        }
        if (++ticks_ < kTicks) return;
        // The scheduler is asked first: threads may loop through it without progress.
        const bool was_asked = is_spent_;
        is_spent_ = true;
        if (was_asked && site_.is_armed && kernel_.holds(address, 1)) {
            site_.is_armed = false;
            site_.crash = {.code = address};
            siglongjmp(site_.resume, kJump);
        }
        repeat_every(kRetrySeconds);
    }

    // May be called by the handler.
    void repeat_every(double seconds) {
        const double whole = std::floor(seconds);
        const auto nanoseconds = static_cast<long>((seconds - whole) * 1e9);
        const timespec period{static_cast<time_t>(whole), std::max(nanoseconds, 1000L)};
        const itimerspec times{period, period};
        if (is_armed_) timer_settime(timer_, 0, &times, nullptr);
    }

    const Array kernel_;  // its library
    CrashSite& site_;
    const volatile uint64_t& progress_;
    uint64_t seen_ = 0;
    int ticks_ = 0;
    volatile bool is_spent_ = false;
    bool is_armed_ = false;
    timer_t timer_{};
};

}  // namespace tmaasync_emulate
