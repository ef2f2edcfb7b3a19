// The choice of the cluster that runs next.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.hpp"
#include "policy/random.hpp"

namespace tmaasync_emulate {

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

}  // namespace tmaasync_emulate
