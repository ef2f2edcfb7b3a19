// Vector clocks: the happens-before order, as far as each agent knows it.
//
// An agent makes accesses that are ordered among themselves. Agents are a CUDA thread; the TMA
// loads that one phase of an mbarrier counts; a thread's bulk groups as readers of shared memory,
// and again as writers of global memory; a thread's cp.async groups; a warpgroup's wgmma groups. An
// epoch numbers an agent's accesses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace tmaasync_emulate {

using Agent = uint32_t;
using Epoch = uint32_t;

constexpr Agent kNoAgent = ~Agent{0};

// For each of two clocks, true if any of its epochs is later than the other clock's.
struct LaterEpochs {
    bool of_a = false;
    bool of_b = false;
};

// The latest known epoch of every agent, 0 for most. Copies share their storage until one changes.
class Clock {
public:
    Epoch at(Agent agent) const {
        return epochs_ && agent < epochs_->size() ? (*epochs_)[agent] : 0;
    }

    void set(Agent agent, Epoch epoch) {
        if (at(agent) == epoch) return;
        std::vector<Epoch>& epochs = own(agent + 1);
        epochs[agent] = epoch;
    }

    void raise(Agent agent, Epoch epoch) {
        if (at(agent) < epoch) set(agent, epoch);
    }

    // Joins the epochs of agents from `first` on; 0 means all agents.
    void join(const Clock& other, Agent first = 0);

    bool is_empty() const { return !epochs_; }
    // True if both are known to be equal.
    bool shares(const Clock& other) const { return epochs_ && epochs_ == other.epochs_; }
    bool is_after(const Clock& other) const {
        return other.epochs_ == epochs_ || !other.epochs_ || !later(other, 0).of_b;
    }

private:
    LaterEpochs later(const Clock& other, Agent first) const;
    std::vector<Epoch>& own(std::size_t size);

    std::shared_ptr<std::vector<Epoch>> epochs_;
};

// One clock per key: a tensor map's address, or a cluster's index. Copies share their storage until
// one changes.
template <class Key>
class KeyedClocks {
public:
    Clock of(Key key) const;

    Epoch at(Key key, Agent agent) const {
        if (!clocks_) return 0;
        const auto found = clocks_->find(key);
        return found == clocks_->end() ? 0 : found->second.at(agent);
    }

    void join(Key key, const Clock& clock);

    void join(const KeyedClocks& other);

private:
    using Clocks = std::map<Key, Clock>;

    // True if this happens-before set includes all of `other`.
    bool is_after(const KeyedClocks& other) const;

    Clocks& own();

    std::shared_ptr<Clocks> clocks_;
};

extern template class KeyedClocks<uintptr_t>;
extern template class KeyedClocks<uint32_t>;

using MapClocks = KeyedClocks<uintptr_t>;
using ClusterClocks = KeyedClocks<uint32_t>;

}  // namespace tmaasync_emulate
