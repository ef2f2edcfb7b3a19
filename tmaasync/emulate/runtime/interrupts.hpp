// Ctrl-C while a launch runs: the watchdogs stop the launch, and Python raises KeyboardInterrupt.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>

#include "signal_handler.hpp"

namespace tmaasync_emulate {

// Counts the process's SIGINTs, and passes each on to the handler from before, which is Python's.
class Interrupts {
public:
    static uint32_t count() { return count_.load(std::memory_order_relaxed); }

    // While a launch runs. Other threads' system calls are not restarted: Python looks for signals
    // when one was interrupted.
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

}  // namespace tmaasync_emulate
