// A signal handler of the process, as long as it is needed.
#pragma once

#include <signal.h>

#include <array>
#include <mutex>

namespace tmaasync_emulate {

// Launches on several threads of the host share it: the first one installs the handler, and the
// last one restores the handler from before.
class SignalHandler {
public:
    using Handle = void (*)(int, siginfo_t*, void*);

    SignalHandler(int number, Handle handle, int flags = SA_RESTART) : number_(number) {
        const std::lock_guard guard(lock());
        if (entry(number).users++ > 0) return;
        struct sigaction mine{};
        mine.sa_sigaction = handle;
        // A handler may be left by a jump: its signal must not stay blocked.
        mine.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | flags;
        sigemptyset(&mine.sa_mask);
        sigaction(number, &mine, &entry(number).before);
    }
    ~SignalHandler() {
        const std::lock_guard guard(lock());
        if (--entry(number_).users == 0) sigaction(number_, &entry(number_).before, nullptr);
    }
    SignalHandler(const SignalHandler&) = delete;
    SignalHandler& operator=(const SignalHandler&) = delete;

    // What was there before. For the handler itself.
    static const struct sigaction& before(int number) { return entry(number).before; }
    static void pass_on(int number, siginfo_t* info, void* context) {
        const struct sigaction& handler = before(number);
        if (handler.sa_flags & SA_SIGINFO) return handler.sa_sigaction(number, info, context);
        if (handler.sa_handler == SIG_DFL || handler.sa_handler == SIG_IGN) return;
        handler.sa_handler(number);
    }

private:
    struct Entry {
        int users;
        struct sigaction before;
    };

    static Entry& entry(int number) {
        static Entry entries[NSIG];
        return entries[number];
    }
    static std::mutex& lock() {
        static std::mutex mutex;
        return mutex;
    }

    int number_;
};

}  // namespace tmaasync_emulate
