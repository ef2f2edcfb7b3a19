// The choice of the thread that runs next, and of the time when copies land. A policy gives the
// rules, and a seed draws.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "abi.hpp"
#include "policy/random.hpp"

namespace tmaasync_emulate {

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

    // True if a request for a cluster fails while there are some. The chip may keep them for itself
    // at any time.
    bool refuses_cluster() { return policy_ != Policy::kRoundRobin && random_.one_in(8); }

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

}  // namespace tmaasync_emulate
