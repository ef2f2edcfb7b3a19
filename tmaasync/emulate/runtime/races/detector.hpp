// The race detector of one cluster: every access is checked against earlier ones.
//
// Two accesses race if one of them writes, they share a byte, and neither happens before the other.
// Ordinary accesses belong to the generic proxy; TMA and wgmma belong to the async proxy. An
// ordinary write happens before an asynchronous access only if a proxy fence lies between them (PTX
// ISA, memory consistency model: "proxy-preserved base causality order").
#pragma once

#include <cstdint>
#include <optional>
#include <tmaasync_emulate/calls.hpp>
#include <utility>
#include <vector>

#include "races/first_reads.hpp"
#include "races/grid_races.hpp"
#include "races/race.hpp"
#include "races/replicated_loads.hpp"
#include "rules.hpp"

namespace tmaasync_emulate {

inline constexpr uintptr_t kIsAcquired = 1;  // maps lie at multiples of 64
inline constexpr uint64_t kFewBytes = 2 * kCellBytes;
inline constexpr uint8_t kWholeCell = 0xff;

class Detector {
public:
    Detector(
        GridRaces& grid, const Rules& rules, uint32_t threads, uint32_t ctas, uintptr_t windows
    );
    ~Detector() { grid_.detectors.erase(cluster_); }
    Detector(const Detector&) = delete;
    Detector& operator=(const Detector&) = delete;

    // Prepares for the next cluster.
    void reset(uint32_t cluster, LaunchHistory* history);

    // Called at the cluster's end. All that it did and knew happens before its device's next
    // launch.
    void end_cluster();

    Agent new_agent() { return agents_++; }
    // Takes a pair of unordered stores to the same bytes. Two lanes of a warp in one instruction
    // may store the same value (CUDA C++ Programming Guide, "SIMT Architecture").
    std::optional<Race> take_repeated() { return std::exchange(repeated_, {}); }

    bool has_race() const { return has_race_; }
    const Race& race() const { return race_; }
    // Reports a race, unless the launch relaxes its rule. Only the first one counts.
    void report(Race race);

    // The number of the last access or issued operation.
    uint32_t order() const { return grid_.order; }

    // --- happens-before ---

    // Everything that happens before the thread's next access.
    View view_of(uint32_t thread) const;
    View& own_view(uint32_t thread) { return views_[thread]; }

    Issued issue(uint32_t thread, uintptr_t site);

    // Marks the thread's accesses so far, for others to `learn`.
    Epoch mark(uint32_t thread) { return epochs_[thread]++; }
    void learn(uint32_t thread, const Clock& done);

    // An arrival with release: publishes the thread's happens-before set in `target`.
    void release(uint32_t thread, View& target) {
        target.join(view_of(thread));
        ++epochs_[thread];
    }
    // A relaxed arrival publishes the accesses before the thread's last fence. A fence after a
    // relaxed wait acquires them (PTX ISA, release and acquire patterns).
    void release_relaxed(uint32_t thread, View& target);
    void acquire(uint32_t thread, const View& source) { views_[thread].join(source); }
    void acquire_relaxed(uint32_t thread, const View& source) {
        views_[thread].join_relaxed(source);
        acquired_[thread].join(source);
    }
    // A wait for an agent's asynchronous work up to an epoch.
    void finish(uint32_t thread, Agent agent, Epoch epoch) {
        views_[thread].seen.raise(agent, epoch);
        views_[thread].issued_after.raise(agent, epoch);
    }

    // A wait until an agent's stores have reached global memory.
    void finish_stores(uint32_t thread, Agent agent, Epoch epoch);

    // fence.proxy.async
    void publish(uint32_t thread, Space space);

    // fence.proxy.tensormap::generic, .release and .acquire
    void release_maps(uint32_t thread);
    // The acquire covers the map that it names, and no other.
    void acquire_map(uint32_t thread, uintptr_t map);
    // True if the thread, or one before it, has acquired the map in this launch.
    bool has_acquired_map(uint32_t thread, uintptr_t map) const {
        return !views_[thread].maps_acquired.of(map | kIsAcquired).is_empty();
    }

    // TMA reads the map of a copy. It sees those ordinary writes that two fences made visible.
    void read_map(const Issued& issued, Agent agent, Epoch epoch, uintptr_t map, uint64_t bytes);

    // TMA reads the map of a prefetch. No thread can wait for it, so it does not race with a later
    // edit.
    void peek_at_map(const Issued& issued, uintptr_t map, uint64_t bytes);

    bool knows(uint32_t thread, Agent agent, Epoch epoch) const {
        return agent == thread || views_[thread].seen.at(agent) >= epoch;
    }
    bool knows_arrival(uint32_t thread, Agent agent, Epoch epoch) const {
        return knows(thread, agent, epoch) || views_[thread].arrivals.at(agent) >= epoch;
    }
    Epoch epoch_of(uint32_t thread) const { return epochs_[thread]; }
    bool is_published(uint32_t thread, Agent agent, Epoch epoch) const {
        return views_[thread].published[static_cast<int>(Space::kShared)].at(agent) >= epoch;
    }

    // --- fences and atomic operations, which are relaxed themselves ---

    // A fence at device scope also orders accesses that other clusters see.
    void fence(uint32_t thread, bool reaches_clusters, bool reaches_devices);

    // Acquires the writes that others released at the address. Writes of other clusters are known
    // without a fence after the atomic operation, as in CUDA's sample threadFenceReduction, unless
    // this SM's L1 may hold older bytes (`is_stale`).
    void acquire_at(uint32_t thread, uintptr_t address, Scope scope);
    void release_at(uint32_t thread, uintptr_t address, Scope scope);

    // Called before a thread compares and swaps the bytes at the address.
    void exchange(uint32_t thread, uintptr_t address, uint32_t bytes);
    void end_thread(uint32_t thread) {
        if (const auto race = first_reads_.end(thread, grid_.first_reads)) report(*race);
    }

    // --- signals ---

    // Returns the kind of operation that changed the signal last.
    PostedBy note_before_post(uintptr_t address, uint32_t value);
    void note_post(uintptr_t address, uint32_t epoch, PostedBy by);

    // Called when the signal has reached an epoch: acquires the writes that its posts released.
    void acquire_epoch(uint32_t thread, uintptr_t address, uint32_t value, uint32_t epoch);

    // --- accesses ---

    Actor ordinary(uint32_t thread, uintptr_t site, Operation operation, bool is_system = false);
    Access access_of(const Actor& actor, uint8_t mask, bool writes) const;

    void shared(const Actor& actor, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes);

    // Checks a part of an access. Earlier parts had the same `last`.
    void shared(
        const Actor& actor,
        uint32_t rank,
        uint32_t offset,
        uint32_t bytes,
        bool writes,
        LastCell& last
    );

    // True if any of the bytes was ever written, as far as writes are recorded.
    bool is_written(uint32_t rank, uint32_t offset, uint32_t bytes);

    bool is_written_globally(uintptr_t address, uint64_t bytes);

    // Called when memory is allocated anew: all earlier accesses happen before.
    void forget_global(uintptr_t address, uint64_t bytes) { grid_.shadow.clear(address, bytes); }

    // The load through a tensor map that wrote the cell, if nothing else has written it since.
    const Access* load_at(uint32_t rank, uint32_t offset);

    bool is_all_written(uint32_t rank, uint32_t offset, uint32_t bytes);

    void global(const Actor& actor, uintptr_t address, uint64_t bytes, bool writes);

private:
    void note_atomic(uint32_t thread, uintptr_t address) {
        last_atomics_[thread].note(address / kCellBytes * kCellBytes, ++grid_.order);
    }

    // Acquires the writes that others released at the address on this device.
    void read_place(uint32_t thread, const AtomicPlace& place, bool reaches_clusters);

    // Publishes writes to other devices through an atomic operation at system scope. Release and
    // acquire are fences at that scope, and both are needed.
    void release_to_devices(uint32_t thread, uintptr_t address);

    bool is_of_peer(const Access& access) const {
        return access.cluster != cluster_ && grid_.has_peers() &&
               grid_.device_of(access.cluster) != device_;
    }

    // Operations that are atomic for one device alone are not atomic for its peers.
    bool conflict(const Access& old, const Access& access) const;

    void check_like(
        LastCell& last,
        const Actor& actor,
        Cell& cell,
        const RacedPlace& place,
        uint8_t mask,
        bool writes
    );

    void note_word() {
        if (!grid_.is_over()) --grid_.words_left;
    }

    void check(const Actor& actor, Cell& cell, const RacedPlace& place, uint8_t mask, bool writes);

    // The address of a cell in global memory or in the cluster's shared memory.
    uintptr_t address_of(const RacedPlace& place) const {
        if (place.space != Space::kShared) return place.start;
        return windows_ + place.rank * kWindowStride + place.start;
    }

    bool is_after_atomics(const Access& old, const Actor& actor, const RacedPlace& place) const;

    void compare(const Actor& actor, const Cell& cell, const RacedPlace& place, uint8_t mask);

    void report_pair(
        const Access& old,
        const Access& access,
        const Actor& actor,
        const RacedPlace& place,
        bool was_unwritten
    );

    // True if the race counts only at the end of the thread that reads.
    bool keeps_first_read(const Race& race);

    // True for a load that the block's storing thread has executed too.
    bool is_replicated(const Access& old, const Access& access, const RacedPlace& place);

    bool is_of_one_instruction(const Access& old, const Access& access) const;

    bool is_known(const Access& old, const Actor& actor) const;

    bool is_before(const Access& old, const Actor& actor, Space space) const;

    // True for an ordinary read of another cluster's write to bytes that were read before: without
    // a fence after the flag, L1 may still hold the old bytes. TMA reads L2.
    bool is_stale(const Access& old, const Actor& actor) const {
        return old.had_readers && old.cluster != cluster_ && actor.operation == Operation::kRead &&
               actor.view->others_acquired.at(old.cluster, old.agent) < old.epoch;
    }

    GridRaces& grid_;
    const Rules& rules_;
    const uintptr_t windows_;  // address of the cluster's shared memory
    uint32_t device_ = 0;
    LaunchHistory* history_ = nullptr;
    uint32_t threads_;
    uint32_t threads_of_cta_;
    uint32_t cluster_ = UINT32_MAX;  // until the first one
    Agent agents_ = 0;
    std::vector<View> views_;   // indexed by thread
    std::vector<View> fenced_;  // published by the thread's next atomic operation
    std::vector<View> fenced_for_clusters_;
    std::vector<View> acquired_;           // gained by the thread's next fence
    std::vector<View> acquired_from_all_;  // gained by its next fence at system scope
    std::vector<LastAtomics> last_atomics_;
    std::vector<Epoch> epochs_;
    std::vector<WindowShadow> shadows_;
    bool has_race_ = false;
    std::optional<Race> repeated_;
    FirstReads first_reads_;
    ReplicatedLoads replicated_loads_;
    Race race_{};
};

}  // namespace tmaasync_emulate
