// Signals of the process while a launch runs: Python's handlers run, and may end the launch.
#pragma once

#include <semaphore.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "abi.hpp"
#include "host/signal_handler.hpp"
#include "host/stop.hpp"

namespace tmaasync_emulate {

// Counts the process's SIGINTs, for launches during which no Python handler runs. Passes each
// signal on to the previous handler, which is Python's.
class Interrupts {
public:
    static uint32_t count() { return count_.load(std::memory_order_relaxed); }

    // Lives while a launch runs. Other threads' system calls are not restarted, because Python
    // looks for signals when a call was interrupted.
    class Handler {
    public:
        Handler() : handler_(SIGINT, &handle, 0) {}

    private:
        SignalHandler handler_;
    };

private:
    static void handle(int number, siginfo_t* info, void* context) {
        count_.fetch_add(1, std::memory_order_relaxed);
        SignalHandler::pass_on(number, info, context);
    }

    static inline std::atomic<uint32_t> count_{0};
};

// One call of the runtime, without the interpreter's lock. Where the program has signal handlers of
// its own, they run meanwhile, and the call runs on another thread; it is stopped if one raises.
// The thread costs a small launch as much again, and takes its memory from the system anew.
class HeedingCall {
public:
    explicit HeedingCall(const Interpreter& python) : python_(python) {
        sem_init(&has_ended_, 0, 0);
    }
    ~HeedingCall() { sem_destroy(&has_ended_); }
    HeedingCall(const HeedingCall&) = delete;
    HeedingCall& operator=(const HeedingCall&) = delete;

    // `run` takes the Stop and returns a report, to be released with free(), or null. The result is
    // also null if a handler raised: Python then raises its exception.
    template <typename Run>
    auto operator()(const Run& run) {
        std::optional<Interrupts::Handler> interrupts;
        if (python_.stops_at_interrupt) interrupts.emplace();
        decltype(run(stop_)) report;
        void* thread = python_.release();
        std::thread other = started([&] {
            report = run(stop_);
            sem_post(&has_ended_);
        });
        if (other.joinable()) {
            wait(thread);
            other.join();
        } else {
            report = run(stop_);
        }
        python_.acquire(thread);
        if (stop_ || python_.run_handlers() != 0) report = nullptr;
        return report;
    }

private:
    // A signal usually ends a wait, but another thread of the process may have taken it.
    static constexpr long kLookEveryNanoseconds = 50'000'000;

    // Starts no thread where no handler would run, or where the machine has none left.
    template <typename Body>
    std::thread started(const Body& body) {
        if (!python_.runs_handlers) return {};
        try {
            return std::thread(body);
        } catch (const std::system_error&) {
            return {};
        }
    }

    void wait(void*& thread) {
        while (!has_ended()) {
            if (stop_) continue;  // the handler's exception is pending
            python_.acquire(thread);
            if (python_.run_handlers() != 0) stop_ = true;
            thread = python_.release();
        }
    }

    bool has_ended() {
        timespec until{};
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += kLookEveryNanoseconds;
        until.tv_sec += until.tv_nsec / 1'000'000'000;
        until.tv_nsec %= 1'000'000'000;
        return sem_timedwait(&has_ended_, &until) == 0;
    }

    const Interpreter& python_;
    sem_t has_ended_{};
    Stop stop_{false};
};

}  // namespace tmaasync_emulate
