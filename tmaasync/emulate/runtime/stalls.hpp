// Clusters that do nothing but ask: each may wait for what another one brings.
#pragma once

#include <cstdint>
#include <mutex>

namespace tmaasync_emulate {

// Of the clusters that the workers of one launch run now.
class Stalls {
public:
    // One worker's part.
    struct Mine {
        bool is_stalled = false;
        bool is_confirmed = false;
        uint64_t seen = 0;
    };

    explicit Stalls(uint64_t workers) : working_(workers) {}

    // A worker has no more clusters. Until then it may bring what others wait for, even if it has
    // not begun.
    void leave() {
        const std::lock_guard guard(lock_);
        --working_;
        change();
    }

    // The cluster did something else than ask, or ended.
    void go_on(Mine& mine) {
        const std::lock_guard guard(lock_);
        if (!mine.is_stalled) return;
        mine.is_stalled = false;
        --stalled_;
        change();
    }

    // All its threads have polled in vain, many times each. Whether none can ever get an answer:
    // everyone has asked in vain again, from beginning to end, since the last one had nothing else
    // to do.
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
