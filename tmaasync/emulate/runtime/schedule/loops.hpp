// Detection of endless loops. A thread that is twice in the same state, and has neither written
// memory nor called the runtime in between, loops for ever unless another thread changes the memory
// that it reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tmaasync_emulate/calls.hpp>

namespace tmaasync_emulate {

// FNV-1a over 8-byte words.
inline uint64_t hash_of(uintptr_t start, uintptr_t end, uint64_t hash) {
    for (uintptr_t at = start / 8 * 8; at + 8 <= end; at += 8) {
        uint64_t word;
        std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof(word));
        hash = (hash ^ word) * 0x100000001b3;
    }
    return hash;
}

// Finds a repetition of any period in a sequence of states (Brent's algorithm).
class RepeatFinder {
public:
    bool sees_again(uint64_t state) {
        if (state == kept_) return true;
        if (++steps_ < limit_) return false;
        kept_ = state;
        limit_ *= 2;
        steps_ = 0;
        return false;
    }
    void reset() { *this = {}; }

private:
    uint64_t kept_ = 0;
    uint64_t steps_ = 0;
    uint64_t limit_ = 1;
};

// Watches the threads that one worker runs.
class LoopWatch {
public:
    // Ranges that threads access without calling the runtime. Empty while reads are watched.
    const Reach* reaches() const { return reaches_.data(); }
    void let_reach(Reach reach) {
        if (!is_on_ && reach.end) reaches_[next_reach_++ % kReaches] = reach;
    }

    void note_call() { ++calls_; }

    void forget_reaches() { reaches_ = {}; }

    // Starts to watch every read. A signal handler may call it.
    void begin() {
        is_on_ = true;
        looks_ = 0;
        reaches_ = {};
    }
    bool is_on() const { return is_on_; }

    // Notes a thread's state at a read. True if a thread has been in this state before.
    bool repeats_read(uint64_t state) {
        if (reads_.sees_again(state)) {
            looks_ = 0;
            return true;
        }
        if (++looks_ > kLooks) end();
        return false;
    }
    // Called when a thread does something other than read.
    void end() {
        is_on_ = false;
        reads_.reset();
    }

    // Notes the running thread's state at a tick of the clock. True if earlier ticks found the same
    // state.
    bool repeats_tick(uint64_t state) {
        if (calls_ != calls_at_tick_) ticks_.reset();
        calls_at_tick_ = calls_;
        return ticks_.sees_again(state);
    }

private:
    // Reads that are watched after each tick, at 0.3 us each (2026-11-22).
    static constexpr uint32_t kLooks = 512;

    std::array<Reach, kReaches> reaches_{};
    std::size_t next_reach_ = 0;
    volatile bool is_on_ = false;
    uint32_t looks_ = 0;
    volatile uint64_t calls_ = 0;  // calls of the runtime, and accesses that call it
    uint64_t calls_at_tick_ = 0;
    RepeatFinder reads_;
    RepeatFinder ticks_;
};

}  // namespace tmaasync_emulate
