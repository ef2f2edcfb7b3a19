// The threads that can run.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <utility>

#include "policy/choices.hpp"

namespace tmaasync_emulate {

struct Fiber;

// Threads that polled in vain come last, since nothing has changed.
class ReadyThreads {
public:
    bool empty() const { return size_ == 0; }
    std::size_t size() const { return size_; }

    void clear() {
        for (Queue& queue : queues_) queue.clear();
        size_ = 0;
    }

    void add(Fiber* fiber, Priority priority) {
        queues_[static_cast<std::size_t>(priority)].push_back(fiber);
        ++size_;
    }
    void add_in_vain(Fiber* fiber) {
        queues_[kInVain].push_back(fiber);
        ++size_;
    }

    // Called when something has changed: threads that polled in vain may poll again.
    template <typename PriorityOf>
    void reconsider(PriorityOf priority_of) {
        Queue& waiting = queues_[kInVain];
        for (Fiber* fiber : waiting) {
            queues_[static_cast<std::size_t>(priority_of(fiber))].push_back(fiber);
        }
        waiting.clear();
    }

    // Takes the next thread: of the highest priority, or if `is_fair`, from each queue in turn.
    template <typename PassesOver>
    Fiber* take(Choices& choices, bool is_fair, PassesOver passes_over) {
        Queue& queue = is_fair ? in_turn() : highest();
        std::size_t index = is_fair ? 0 : choices.thread(queue.size());
        if (passes_over(queue[index])) index = choices.thread(queue.size());
        std::swap(queue[index], queue.front());
        Fiber* fiber = queue.front();
        queue.pop_front();
        --size_;
        return fiber;
    }

private:
    using Queue = std::deque<Fiber*>;
    static constexpr std::size_t kInVain = 3;

    Queue& highest() {
        return *std::find_if(queues_.begin(), queues_.end(), [](const Queue& queue) {
            return !queue.empty();
        });
    }

    Queue& in_turn() {
        do {
            turn_ = (turn_ + 1) % queues_.size();
        } while (queues_[turn_].empty());
        return queues_[turn_];
    }

    std::array<Queue, 4> queues_;
    std::size_t size_ = 0;
    std::size_t turn_ = 0;
};

}  // namespace tmaasync_emulate
