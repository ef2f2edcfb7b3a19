// Vector clocks: the happens-before order, as far as each agent knows it.
//
// An agent makes accesses that are ordered among themselves. Agents are a CUDA thread; the TMA
// loads that one phase of an mbarrier counts; a thread's bulk groups as readers of shared memory,
// and again as writers of global memory; a thread's cp.async groups; a warpgroup's wgmma groups. An
// epoch numbers an agent's accesses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace tmaasync_emulate {

using Agent = uint32_t;
using Epoch = uint32_t;

constexpr Agent kNoAgent = ~Agent{0};

// --- epochs side by side -------------------------------------------------------------------------

// A clock has one epoch for every thread of a cluster, and every arrival and every wait joins
// clocks. Without vector instructions, this took half the time of a race-checked GEMM.

struct LaterEpochs {
    bool of_a = false;
    bool of_b = false;
};

__attribute__((always_inline)) inline LaterEpochs later_epochs_body(
    const Epoch* a, const Epoch* b, std::size_t count
) {
    Epoch of_a = 0, of_b = 0;
    for (std::size_t i = 0; i < count; ++i) {
        of_a |= a[i] > b[i];
        of_b |= b[i] > a[i];
    }
    return {of_a != 0, of_b != 0};
}

__attribute__((always_inline)) inline void raise_epochs_body(
    Epoch* a, const Epoch* b, std::size_t count
) {
    for (std::size_t i = 0; i < count; ++i) a[i] = a[i] < b[i] ? b[i] : a[i];
}

#if defined(__x86_64__)
__attribute__((target("avx2"), optimize("O3"))) inline LaterEpochs later_epochs_avx2(
    const Epoch* a, const Epoch* b, std::size_t count
) {
    return later_epochs_body(a, b, count);
}

__attribute__((target("avx2"), optimize("O3"))) inline void raise_epochs_avx2(
    Epoch* a, const Epoch* b, std::size_t count
) {
    raise_epochs_body(a, b, count);
}
#endif

// For each clock, true if any of its epochs is later than the other clock's.
inline LaterEpochs later_epochs(const Epoch* a, const Epoch* b, std::size_t count) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return later_epochs_avx2(a, b, count);
#endif
    return later_epochs_body(a, b, count);
}

inline void raise_epochs(Epoch* a, const Epoch* b, std::size_t count) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return raise_epochs_avx2(a, b, count);
#endif
    raise_epochs_body(a, b, count);
}

// --- clocks --------------------------------------------------------------------------------------

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
    void join(const Clock& other, Agent first = 0) {
        if (other.epochs_ == epochs_ || !other.epochs_) return;
        if (first == 0 && !epochs_) {
            epochs_ = other.epochs_;
            return;
        }
        const auto [ours, theirs] = later(other, first);
        if (first == 0 && !ours) {
            epochs_ = other.epochs_;
        } else if (theirs) {
            const std::vector<Epoch>& others = *other.epochs_;
            std::vector<Epoch>& epochs = own(others.size());
            if (first < others.size()) {
                raise_epochs(&epochs[first], &others[first], others.size() - first);
            }
        }
    }

    bool shares_with(const Clock& other) const { return epochs_ == other.epochs_; }
    bool is_empty() const { return !epochs_; }
    bool is_after(const Clock& other) const {
        return other.epochs_ == epochs_ || !other.epochs_ || !later(other, 0).of_b;
    }

private:
    LaterEpochs later(const Clock& other, Agent first) const {
        static const std::vector<Epoch> nothing;
        const std::vector<Epoch>& a = epochs_ ? *epochs_ : nothing;
        const std::vector<Epoch>& b = *other.epochs_;
        const std::size_t both = std::min(a.size(), b.size());
        LaterEpochs found;
        if (first < both) found = later_epochs(&a[first], &b[first], both - first);
        for (std::size_t i = std::max<std::size_t>(both, first); i < a.size(); ++i) {
            found.of_a |= a[i] != 0;
        }
        for (std::size_t i = std::max<std::size_t>(both, first); i < b.size(); ++i) {
            found.of_b |= b[i] != 0;
        }
        return found;
    }

    std::vector<Epoch>& own(std::size_t size) {
        if (!epochs_) {
            epochs_ = std::make_shared<std::vector<Epoch>>(size);
        } else if (epochs_.use_count() > 1) {
            epochs_ = std::make_shared<std::vector<Epoch>>(*epochs_);
        }
        if (epochs_->size() < size) epochs_->resize(size);
        return *epochs_;
    }

    std::shared_ptr<std::vector<Epoch>> epochs_;
};

// One clock per key: a tensor map's address, or a cluster's index. Copies share their storage until
// one changes.
template <class Key>
class KeyedClocks {
public:
    Clock of(Key key) const {
        if (!clocks_) return {};
        const auto found = clocks_->find(key);
        return found == clocks_->end() ? Clock{} : found->second;
    }

    Epoch at(Key key, Agent agent) const {
        if (!clocks_) return 0;
        const auto found = clocks_->find(key);
        return found == clocks_->end() ? 0 : found->second.at(agent);
    }

    void join(Key key, const Clock& clock) {
        if (!clock.is_empty()) own()[key].join(clock);
    }

    void join(const KeyedClocks& other) {
        if (other.clocks_ == clocks_ || !other.clocks_) return;
        if (!clocks_) {
            clocks_ = other.clocks_;
            return;
        }
        // A polling thread joins the same clocks again and again.
        if (is_after(other)) return;
        if (other.is_after(*this)) {
            clocks_ = other.clocks_;
            return;
        }
        for (const auto& [key, clock] : *other.clocks_) join(key, clock);
    }

private:
    using Clocks = std::map<Key, Clock>;

    // True if this happens-before set includes all of `other`.
    bool is_after(const KeyedClocks& other) const {
        if (clocks_->size() < other.clocks_->size()) return false;
        auto mine = clocks_->begin();
        for (const auto& [key, clock] : *other.clocks_) {
            while (mine != clocks_->end() && mine->first < key) ++mine;
            if (mine == clocks_->end() || mine->first != key) return false;
            if (!mine->second.is_after(clock)) return false;
        }
        return true;
    }

    Clocks& own() {
        if (!clocks_) {
            clocks_ = std::make_shared<Clocks>();
        } else if (clocks_.use_count() > 1) {
            clocks_ = std::make_shared<Clocks>(*clocks_);
        }
        return *clocks_;
    }

    std::shared_ptr<Clocks> clocks_;
};

using MapClocks = KeyedClocks<uintptr_t>;
using ClusterClocks = KeyedClocks<uint32_t>;

// The happens-before set of a thread, or the set that a barrier publishes.
struct View {
    Clock seen;  // accesses that happen before the thread's next access
    // Accesses that happen before its next copy or wgmma: more than `seen` after a relaxed wait.
    Clock issued_after;
    Clock published[2];  // ordinary writes visible to the async proxy, by space
    // Ordinary writes, tensor map edits among them, that a tensormap fence released.
    Clock maps_released;
    // Released edits of each map that a second fence acquired: TMA sees them.
    MapClocks maps_acquired;
    Clock arrivals;        // relaxed arrivals whose phase was waited for; they order nothing else
    Clock fenced;          // ordinary writes that any thread's fence ordered for all clusters
    ClusterClocks others;  // accesses of other clusters that happen before
    ClusterClocks others_acquired;   // accesses of `others` that a fence followed
    ClusterClocks others_published;  // accesses of `others` that a proxy fence made visible to TMA
    // For several devices: accesses covered by a fence at system scope, and ordinary writes of
    // peers that their writers made visible to TMA.
    Clock fenced_for_all;
    ClusterClocks others_fenced_for_all;
    ClusterClocks offered;

    void join(const View& other) {
        seen.join(other.seen);
        join_relaxed(other);
    }

    // Joins the parts that a wait without acquire gains.
    void join_relaxed(const View& other) {
        issued_after.join(other.issued_after);
        for (int space = 0; space < 2; ++space) published[space].join(other.published[space]);
        maps_released.join(other.maps_released);
        maps_acquired.join(other.maps_acquired);
        arrivals.join(other.arrivals);
        fenced.join(other.fenced);
        others.join(other.others);
        others_acquired.join(other.others_acquired);
        others_published.join(other.others_published);
        fenced_for_all.join(other.fenced_for_all);
        others_fenced_for_all.join(other.others_fenced_for_all);
        offered.join(other.offered);
    }

    // Joins the parts that an arrival without release publishes: only accesses of asynchronous
    // agents.
    void join_async_agents(const View& other, Agent first) {
        seen.join(other.seen, first);
        issued_after.join(other.issued_after, first);
    }
};

}  // namespace tmaasync_emulate
