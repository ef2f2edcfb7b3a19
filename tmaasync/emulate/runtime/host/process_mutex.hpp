// Mutexes of the process that are free in a forked child.
#pragma once

#include <pthread.h>

#include <mutex>
#include <vector>

namespace tmaasync_emulate {

// A fork waits until no thread holds one. Declare it static: it is never destroyed. A thread that
// holds one takes no other.
class ProcessMutex {
public:
    ProcessMutex() {
        static const int registered = pthread_atfork(&lock_all, &unlock_all, &unlock_all);
        (void)registered;
        const std::lock_guard guard(list());
        all().push_back(this);
    }
    ProcessMutex(const ProcessMutex&) = delete;
    ProcessMutex& operator=(const ProcessMutex&) = delete;

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

private:
    static std::vector<ProcessMutex*>& all() {
        static auto* const mutexes = new std::vector<ProcessMutex*>;
        return *mutexes;
    }
    static std::mutex& list() {
        static auto* const mutex = new std::mutex;
        return *mutex;
    }
    static void lock_all() {
        list().lock();
        for (ProcessMutex* const each : all()) each->lock();
    }
    static void unlock_all() {
        for (ProcessMutex* const each : all()) each->unlock();
        list().unlock();
    }

    std::mutex mutex_;
};

}  // namespace tmaasync_emulate
