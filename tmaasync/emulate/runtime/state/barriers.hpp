// The state of barriers: mbarriers and the named barriers of a CTA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "races/view.hpp"

namespace tmaasync_emulate {

struct Fiber;

// Distinct warps of a cluster, by number.
class WarpSet {
public:
    void add(uint32_t warp) {
        if (!warps_.empty() && warps_.back() == warp) return;
        if (std::find(warps_.begin(), warps_.end(), warp) == warps_.end()) warps_.push_back(warp);
    }
    void clear() { warps_.clear(); }
    const std::vector<uint32_t>& warps() const { return warps_; }

private:
    std::vector<uint32_t> warps_;
};

// The threads that arrived in a phase, by number in the cluster, and their warps.
struct Arrived {
    WarpSet warps;
    std::vector<uint32_t> threads;

    void clear() {
        warps.clear();
        threads.clear();
    }
};

// A load that landed after the phase that should have counted it.
struct LateLoad {
    uint32_t order;  // of its issue, for the race detector
    uint64_t phase;
    uint32_t bytes;
};

// A load that a barrier counted: its first byte, its thread and its line.
struct Landing {
    uint32_t shared;
    const Fiber* issuer;
    uintptr_t site;
};

// The thread that issued an operation, and the line.
struct Issuer {
    const Fiber* fiber = nullptr;
    uintptr_t site = 0;
};

// The past of an mbarrier, for reports.
struct BarrierHistory {
    Arrived arrived;                // threads that arrived in this phase
    Arrived arrived_before;         // threads that arrived in the phase before
    WarpSet arrivers;               // warps that arrived in any phase
    std::vector<bool> has_arrived;  // threads that arrived in any phase, by number
    uint32_t arriving_threads = 0;  // number of these threads
    WarpSet waited;                 // warps that waited in any phase
    Issuer arrived_first;           // first arrival of this phase
    Issuer expected_last;           // last instruction that expected bytes, in any phase
    Issuer passed_at_first;         // a wait for parity 1 in phase 0
    Issuer gave_up_last;            // a wait of this phase that returned false and was not repeated
    std::vector<Landing> landings;  // loads of this phase
    std::vector<Landing> landed_last;  // loads of the last completed phase that had any
    std::vector<LateLoad> late;
    std::array<int64_t, 4> expected_before{};  // bytes that the last phases expected

    int64_t& expected_in(uint64_t phase) { return expected_before[phase % expected_before.size()]; }
    int64_t expected_in(uint64_t phase) const {
        return expected_before[phase % expected_before.size()];
    }
};

// The facts about an mbarrier that the race detector needs.
struct BarrierRaces {
    uint32_t initialiser = 0;
    Epoch initialised = 0;
    bool is_init_fenced = false;
    Epoch fenced = 0;        // epoch of fence.mbarrier_init
    Agent agent = kNoAgent;  // agent of the loads that a phase counts
    View gathered;           // published in this phase
    View completed;          // published in the phase before
};

struct Mbarrier {
    uint32_t offset = 0;
    uint32_t count = 0;
    uint32_t pending = 0;
    int64_t bytes = 0;  // transaction count: expected minus delivered, negative if delivered first
    int64_t expected = 0;
    uint64_t phase = 0;
    uint64_t word = 0;  // value in shared memory unless overwritten
    bool is_valid = false;
    uintptr_t init_site = 0;
    uint32_t waiting = 0;   // threads inside a wait, woken or not
    uint64_t landed = 0;    // number of completed phases after which all loads so far have landed
    uint64_t observed = 0;  // number of phases that some thread knows to be complete
    std::vector<Fiber*> waiters;
    BarrierHistory history;
    BarrierRaces races;
};

constexpr uint32_t kMaxWarps = 32;

struct NamedBarrier {
    uint32_t threads = 0;
    uint32_t arrived = 0;
    std::vector<Fiber*> waiters;
    View gathered;
    std::array<uint32_t, kMaxWarps> lines{};  // line where each warp's lanes wait; 0 if unknown
};

}  // namespace tmaasync_emulate
