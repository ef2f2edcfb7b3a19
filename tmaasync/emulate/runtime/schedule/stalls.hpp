// Clusters that only poll: each may wait for an answer of another one.
#pragma once

#include <cstdint>
#include <mutex>

namespace tmaasync_emulate {

// State of the clusters that the workers of one launch run now.
class Stalls {
public:
    // One worker's part.
    struct Mine {
        bool is_stalled = false;
        bool is_confirmed = false;
        uint64_t seen = 0;
    };

    explicit Stalls(uint64_t workers) : working_(workers) {}

    // Called when a worker has no more clusters. Until then, even before it has begun, it may bring
    // an answer that others wait for.
    void leave() {
        const std::lock_guard guard(lock_);
        --working_;
        change();
    }

    // Called when a cluster ended, or did anything other than poll.
    void go_on(Mine& mine) {
        const std::lock_guard guard(lock_);
        if (!mine.is_stalled) return;
        mine.is_stalled = false;
        --stalled_;
        change();
    }

    // Called when all threads of a cluster have polled in vain, many times each. True if none can
    // ever get an answer: all workers have polled in vain again, from beginning to end, since the
    // last of them had nothing else to do.
    bool is_final(Mine& mine) {
        const std::lock_guard guard(lock_);
        if (!mine.is_stalled) {
            mine.is_stalled = true;
            ++stalled_;
            change();
        }
        if (mine.seen != changes_) {
            mine.seen = changes_;
            mine.is_confirmed = false;
        } else if (!mine.is_confirmed) {
            mine.is_confirmed = true;
            ++confirmed_;
        }
        return stalled_ == working_ && confirmed_ == working_;
    }

    bool is_everyone_stalled() {
        const std::lock_guard guard(lock_);
        return stalled_ == working_;
    }

private:
    void change() {
        ++changes_;
        confirmed_ = 0;
    }

    std::mutex lock_;
    uint64_t changes_ = 0;
    uint64_t working_;
    uint64_t stalled_ = 0;
    uint64_t confirmed_ = 0;
};

}  // namespace tmaasync_emulate
