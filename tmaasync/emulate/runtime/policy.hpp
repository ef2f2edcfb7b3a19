// The choice of the thread that runs next, and of the time when copies land. A policy gives the
// rules, and a seed draws.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "abi.hpp"

namespace tmaasync_emulate {

struct Fiber;

class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    // splitmix64
    uint64_t next() {
        uint64_t word = state_ += 0x9e3779b97f4a7c15;
        word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
        word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
        return word ^ (word >> 31);
    }
    uint32_t below(uint64_t limit) { return static_cast<uint32_t>(next() % limit); }
    bool one_in(uint32_t chances) { return below(chances) == 0; }

private:
    uint64_t state_;
};

// --- roles ---------------------------------------------------------------------------------------

// Threads of a cluster that are scheduled alike, apart from the others: a warp, a warpgroup or a
// CTA.
struct Role {
    uint32_t first = 0;
    uint32_t threads = 0;  // an empty role

    bool holds(uint32_t number) const { return number - first < threads; }

    static Role draw(Random& random, uint32_t ctas, uint32_t threads_per_cta) {
        const uint32_t sizes[] = {32, 128, threads_per_cta};
        // A role is never the whole cluster.
        const uint32_t size = sizes[random.below(ctas > 1 ? 3 : threads_per_cta > 128 ? 2 : 1)];
        const uint32_t cta = random.below(ctas);
        const uint32_t part = random.below((threads_per_cta + size - 1) / size);
        return {cta * threads_per_cta + part * size, size};
    }
};

// Threads of a lower value run first.
enum class Priority : uint8_t { kAhead, kUsual, kStarved };

// --- choices -------------------------------------------------------------------------------------

// The choices for one cluster. Round robin draws nothing. `random` draws at every turn.
// `adversarial` draws a hostile schedule once, and keeps it to the end.
class Choices {
public:
    Choices() : Choices(Policy::kRoundRobin, 0, 1, 1) {}
    Choices(Policy policy, uint64_t seed, uint32_t ctas, uint32_t threads_per_cta)
        : policy_(policy), random_(seed) {
        if (policy == Policy::kRoundRobin) return;
        if (policy == Policy::kRandom) {
            // Half of the runs are fair.
            if (random_.one_in(2)) slow_ = Role::draw(random_, ctas, threads_per_cta);
            return;
        }
        if (!random_.one_in(4)) starved_ = Role::draw(random_, ctas, threads_per_cta);
        if (random_.one_in(2)) ahead_ = Role::draw(random_, ctas, threads_per_cta);
        landing_ = static_cast<Moment>(random_.below(3));
        order_ = static_cast<Order>(random_.below(3));
        reading_ = static_cast<Moment>(random_.below(3));
        takes_turns_ = random_.one_in(2);
        yield_chances_ = 1u << (1 + 2 * random_.below(3));
    }

    bool is_adversarial() const { return policy_ == Policy::kAdversarial; }

    // True to let others run now and then, if the policy tries many orders.
    bool yields() { return policy_ != Policy::kRoundRobin && random_.one_in(yield_chances_); }

    // True to let others run after an atomic operation: a loop of them may wait for another thread.
    bool yields_to_atomics() { return policy_ == Policy::kRoundRobin || yields(); }

    // True to let an issued copy land before its thread goes on.
    bool yields_to_copy() { return landing_ == Moment::kAtOnce || yields(); }

    // True if a wait gives up. The chip may give up waiting at any time.
    bool times_out() { return policy_ != Policy::kRoundRobin && random_.one_in(8); }

    // Round robin gives up at once, at the first wait at each site of the kernel. So it finds a
    // try_wait that no loop repeats, and threads run in the same order as without this.
    bool times_out_at_once(uintptr_t site) {
        if (policy_ != Policy::kRoundRobin) return false;
        if (std::find(timed_out_.begin(), timed_out_.end(), site) != timed_out_.end()) return false;
        timed_out_.push_back(site);
        return true;
    }

    // True if a copy lands before the next thread runs.
    bool lands() {
        if (landing_ == Moment::kAtOnce) return true;
        return landing_ == Moment::kDrawn && policy_ != Policy::kRoundRobin && random_.one_in(16);
    }

    // Index of the copy in flight that lands next.
    std::size_t copy(std::size_t count) {
        if (policy_ == Policy::kRoundRobin || order_ == Order::kFirst) return 0;
        return order_ == Order::kLast ? count - 1 : random_.below(count);
    }

    // True if a store reads shared memory as soon as it is issued.
    bool reads_at_once() { return is_at_once(reading_); }

    // True if a store's bytes reach global memory only when a thread waits for that, after they
    // were read.
    bool writes_late() { return policy_ == Policy::kAdversarial || is_drawn(2); }

    // Index of the ready thread that runs next.
    std::size_t thread(std::size_t count) {
        if (policy_ == Policy::kRoundRobin || takes_turns_) return 0;
        return random_.below(count);
    }

    // True if another thread is picked instead.
    bool passes_over(uint32_t number) { return slow_.holds(number) && !random_.one_in(16); }

    Priority priority(uint32_t number) const {
        if (starved_.holds(number)) return Priority::kStarved;
        return ahead_.holds(number) ? Priority::kAhead : Priority::kUsual;
    }

private:
    enum class Moment : uint8_t { kLate, kAtOnce, kDrawn };
    enum class Order : uint8_t { kFirst, kLast, kDrawn };

    bool is_drawn(uint32_t chances) {
        return policy_ != Policy::kRoundRobin && random_.one_in(chances);
    }
    bool is_at_once(Moment moment) {
        return moment == Moment::kAtOnce || (moment == Moment::kDrawn && is_drawn(4));
    }

    Policy policy_;
    Random random_;
    std::vector<uintptr_t> timed_out_;
    Role slow_, starved_, ahead_;
    Moment landing_ = Moment::kDrawn;
    Moment reading_ = Moment::kDrawn;
    Order order_ = Order::kDrawn;
    bool takes_turns_ = false;
    uint32_t yield_chances_ = 4;
};

// --- clusters ------------------------------------------------------------------------------------

// The order in which threads of the resident clusters run. A cluster pauses only before it accesses
// global memory atomically: without these operations nothing orders clusters, in whatever order
// they run.
class ClusterChoices {
public:
    ClusterChoices(Policy policy, uint64_t seed)
        : policy_(policy), random_(seed * 0x9e6c63d0876a9a47 + 1) {
        if (policy == Policy::kRoundRobin) return;
        is_shuffled_ = !random_.one_in(4);
        pauses_reads_ = random_.one_in(2);
        chances_ = 1u << random_.below(3);
    }

    // True if another cluster runs before the access. Round robin delays writes, which may signal
    // other clusters, so that a cluster that lacks the wait for the signal runs ahead of it.
    bool pauses(bool writes) {
        if (policy_ == Policy::kRoundRobin) return writes;
        return (writes || pauses_reads_) && random_.one_in(chances_);
    }

    // Index of the paused cluster that goes on, in the order of the grid. Most clusters wait for
    // earlier ones, so round robin resumes the last one first.
    std::size_t paused(std::size_t count) {
        return policy_ == Policy::kRoundRobin ? count - 1 : random_.below(count);
    }

    // True if a polling cluster polls again before a paused one goes on.
    bool polls_again() { return policy_ != Policy::kRoundRobin && random_.one_in(4); }

    // True if the clusters of a window start in random order.
    bool is_shuffled() const { return is_shuffled_; }
    std::size_t below(std::size_t count) { return random_.below(count); }

private:
    Policy policy_;
    Random random_;
    bool is_shuffled_ = false;
    bool pauses_reads_ = false;
    uint32_t chances_ = 1;
};

// --- the threads that can run --------------------------------------------------------------------

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
