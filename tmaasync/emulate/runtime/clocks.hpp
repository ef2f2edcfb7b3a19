// Vector clocks: what happened before what, as far as an agent knows.
//
// An agent is whoever makes accesses that are in order among themselves: a CUDA thread; the TMA
// loads that one phase of an mbarrier counts; a thread's bulk groups, once as readers of shared and
// once as writers of global memory; a thread's cp.async groups; a warpgroup's wgmma groups. An
// epoch numbers what it has done.
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

// The last epoch known of every agent; 0 of most. Copies share their numbers until one changes.
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

    // Of agents from `first` on; 0 means of all.
    void join(const Clock& other, Agent first = 0) {
        if (other.epochs_ == epochs_ || !other.epochs_) return;
        if (first == 0 && (!epochs_ || is_within(other))) {
            epochs_ = other.epochs_;
            return;
        }
        if (other.is_within(*this, first)) return;
        std::vector<Epoch>& epochs = own(other.epochs_->size());
        for (std::size_t i = first; i < other.epochs_->size(); ++i) {
            epochs[i] = std::max(epochs[i], (*other.epochs_)[i]);
        }
    }

    bool shares_with(const Clock& other) const { return epochs_ == other.epochs_; }

private:
    bool is_within(const Clock& other, Agent first = 0) const {
        const std::size_t size = epochs_ ? epochs_->size() : 0;
        const std::size_t others = other.epochs_ ? other.epochs_->size() : 0;
        for (std::size_t i = first; i < size; ++i) {
            if ((*epochs_)[i] > (i < others ? (*other.epochs_)[i] : 0)) return false;
        }
        return true;
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

// By a tensor map's address, a clock of its own. Copies share them until one changes.
class MapClocks {
public:
    Clock of(uintptr_t map) const {
        if (!clocks_) return {};
        const auto found = clocks_->find(map);
        return found == clocks_->end() ? Clock{} : found->second;
    }

    void join(uintptr_t map, const Clock& clock) { own()[map].join(clock); }

    void join(const MapClocks& other) {
        if (other.clocks_ == clocks_ || !other.clocks_) return;
        if (!clocks_) {
            clocks_ = other.clocks_;
            return;
        }
        for (const auto& [map, clock] : *other.clocks_) join(map, clock);
    }

private:
    using Clocks = std::map<uintptr_t, Clock>;

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

// Shared or global memory: a proxy fence may cover one of them only. Registers have no fence.
enum class Space : uint8_t { kShared, kGlobal, kRegisters };

// What a thread knows to have happened, and what a barrier hands on.
struct View {
    Clock seen;           // before the thread's own accesses
    Clock issued_after;   // before the copies and products it issues: more, after a relaxed wait
    Clock published[2];   // of ordinary writes: to the async proxy, by space
    Clock maps_released;  // of ordinary writes, among them edits of tensor maps: by a fence
    MapClocks maps_acquired;  // and acquired by another, so that TMA reads that map as it is

    void join(const View& other) {
        seen.join(other.seen);
        join_relaxed(other);
    }

    // What a wait without acquire gains.
    void join_relaxed(const View& other) {
        issued_after.join(other.issued_after);
        for (int space = 0; space < 2; ++space) published[space].join(other.published[space]);
        maps_released.join(other.maps_released);
        maps_acquired.join(other.maps_acquired);
    }

    // What an arrival without release hands on: only what finished outside of the thread.
    void join_async_agents(const View& other, Agent first) {
        seen.join(other.seen, first);
        issued_after.join(other.issued_after, first);
    }
};

}  // namespace tmaasync_emulate
