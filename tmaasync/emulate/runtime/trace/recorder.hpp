// The events of a launch, for tmaasync.trace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "abi.hpp"

namespace tmaasync_emulate {

// A wait on one phase of one barrier.
struct AwaitedPhase {
    uint32_t rank = kNothing;
    uint32_t barrier = kNothing;
    uint32_t phase = 0;

    bool operator==(const AwaitedPhase&) const = default;
};

// Records the events of one cluster at a time.
class Recorder {
public:
    void reset(uint64_t cluster) {
        cluster_ = static_cast<uint32_t>(cluster);
        sequence_ = 0;
        time_ = 0;
        events_.clear();
        roles_.clear();
        first_waits_.clear();
    }

    void tick() { ++time_; }
    uint64_t time() const { return time_; }
    // Sets the clock after this time.
    void come_after(uint64_t time) { time_ = std::max(time_, time + 1); }

    void add(Event event) {
        event.time = time_;
        event.cluster = cluster_;
        if (event.other == kNobody) event.other = event.rank;
        events_.push_back(event);
    }

    // Records a warp's role when it is named or renamed.
    void add_role(uint32_t rank, uint32_t warp, const char (&role)[kRoleBytes]) {
        RoleRecord record{cluster_, static_cast<uint16_t>(rank), static_cast<uint16_t>(warp), {}};
        std::memcpy(record.role, role, kRoleBytes);
        roles_.push_back(record);
    }

    // Sequence number of the next copy or wgmma.
    uint32_t new_sequence() { return sequence_++; }

    // True for the first lane to come: all lanes of a warp wait for the same phase.
    bool stands_for_warp(uint32_t warp, uint32_t lane, const AwaitedPhase& awaited) {
        const std::tuple key{warp, awaited.rank, awaited.barrier};
        const auto [found, is_new] = first_waits_.try_emplace(key, awaited.phase, lane);
        auto& [phase, first] = found->second;
        if (!is_new && phase == awaited.phase) return first == lane;
        found->second = {awaited.phase, lane};
        return true;
    }

    const std::vector<Event>& events() const { return events_; }
    const std::vector<RoleRecord>& roles() const { return roles_; }

private:
    uint32_t cluster_ = 0;
    uint32_t sequence_ = 0;
    uint64_t time_ = 0;  // steps of the scheduler
    std::vector<Event> events_;
    std::vector<RoleRecord> roles_;
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::pair<uint32_t, uint32_t>> first_waits_;
};

// Collects the events of all clusters of a launch.
class GridTrace {
public:
    void take(const Recorder& recorder) {
        const std::lock_guard guard(lock_);
        events_.insert(events_.end(), recorder.events().begin(), recorder.events().end());
        roles_.insert(roles_.end(), recorder.roles().begin(), recorder.roles().end());
    }

    EventLog copied() const {
        EventLog log{copy_of(events_), events_.size(), copy_of(roles_), roles_.size()};
        if (!log.events) log.count = 0;
        if (!log.roles) log.role_count = 0;
        return log;
    }

private:
    // Returns null without memory.
    template <typename Record>
    static Record* copy_of(const std::vector<Record>& records) {
        const std::size_t bytes = records.size() * sizeof(Record);
        auto* copy = static_cast<Record*>(std::malloc(bytes));
        if (copy && bytes) std::memcpy(copy, records.data(), bytes);
        return copy;
    }

    std::mutex lock_;
    std::vector<Event> events_;
    std::vector<RoleRecord> roles_;
};

}  // namespace tmaasync_emulate
