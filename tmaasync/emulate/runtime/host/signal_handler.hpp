// Signal handlers of the process, installed as long as they are needed, and the signal mask of a
// thread.
#pragma once

#include <signal.h>

#include <mutex>

#include "host/process_mutex.hpp"

namespace tmaasync_emulate {

// Launches on several host threads share one handler: the first one installs it, and the last one
// restores the previous handler. A handler that was installed meanwhile stays. It may call this one
// or restore it later; then the signal goes to the previous handler.
class SignalHandler {
public:
    using Handle = void (*)(int, siginfo_t*, void*);

    SignalHandler(int number, Handle handle, int flags = SA_RESTART) : number_(number) {
        const std::lock_guard guard(lock());
        Entry& one = entry(number);
        if (one.users++ > 0) return;
        struct sigaction mine{};
        struct sigaction before{};
        mine.sa_sigaction = handle;
        // A jump may leave the handler, so its signal must not stay blocked.
        mine.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | flags;
        sigemptyset(&mine.sa_mask);
        sigaction(number, &mine, &before);
        one.is_passed_on = false;
        one.before = is_same(before, handle) ? one.last : before;  // restored by another handler
        one.handle = handle;
    }
    ~SignalHandler() {
        const std::lock_guard guard(lock());
        if (--entry(number_).users == 0) restore(number_);
    }
    SignalHandler(const SignalHandler&) = delete;
    SignalHandler& operator=(const SignalHandler&) = delete;

    // Called by the handler itself.
    static void pass_on(int number, siginfo_t* info, void* context) {
        const struct sigaction& handler = entry(number).before;
        if (handler.sa_flags & SA_SIGINFO) return handler.sa_sigaction(number, info, context);
        if (handler.sa_handler == SIG_DFL || handler.sa_handler == SIG_IGN) return;
        handler.sa_handler(number);
    }
    // Passes on a crash outside a kernel. After a processor fault, the instruction runs again, into
    // the previous handler. A signal that was sent is sent on. If a handler above this one passes
    // it down, it goes to the last handler.
    static void pass_on_crash(int number, siginfo_t* info, void* context) {
        Entry& one = entry(number);
        const bool is_from_above = one.users == 0 || one.is_passed_on;
        const struct sigaction& next = is_from_above ? one.last : one.before;
        const bool is_default = !(next.sa_flags & SA_SIGINFO) && next.sa_handler == SIG_DFL;
        if (info->si_code > 0 || is_from_above || is_default) {
            one.is_passed_on = true;
            sigaction(number, &next, nullptr);
            if (info->si_code <= 0) raise(number);
            return;
        }
        one.is_passed_on = true;
        pass_on(number, info, context);
        one.is_passed_on = false;
    }

private:
    struct Entry {
        int users;
        Handle handle;
        struct sigaction before;
        struct sigaction last;  // handler below one that was installed during a launch
        volatile bool is_passed_on;
    };

    static bool is_same(const struct sigaction& handler, Handle handle) {
        return (handler.sa_flags & SA_SIGINFO) && handler.sa_sigaction == handle;
    }

    static void restore(int number) {
        Entry& one = entry(number);
        struct sigaction now{};
        sigaction(number, &one.before, &now);
        if (is_same(now, one.handle)) return;
        sigaction(number, &now, nullptr);
        one.last = one.before;
    }

    static Entry& entry(int number) {
        static Entry entries[NSIG];
        return entries[number];
    }
    static ProcessMutex& lock() {
        static auto* const mutex = new ProcessMutex;
        static const int registered = pthread_atfork(nullptr, nullptr, &end_launches);
        (void)registered;
        return *mutex;
    }
    // A forked child has no thread that runs a launch.
    static void end_launches() {
        for (int number = 1; number < NSIG; ++number) {
            if (entry(number).users > 0) restore(number);
            entry(number).users = 0;
        }
    }

    int number_;
};

// Restores the thread's signal mask, which a kernel may have changed.
class SignalMask {
public:
    SignalMask() { pthread_sigmask(SIG_SETMASK, nullptr, &before_); }
    ~SignalMask() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalMask(const SignalMask&) = delete;
    SignalMask& operator=(const SignalMask&) = delete;

private:
    sigset_t before_{};
};

}  // namespace tmaasync_emulate
