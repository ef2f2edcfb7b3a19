// The order of synchronisation in one run of a verified launch.
//
// If no two unordered events decide the effect of a barrier or of an atomic operation, then every
// interleaving synchronises as this run does: it is this run with independent events in another
// order (Mazurkiewicz, "Trace Theory"). Otherwise the run lists the pairs of events, and another
// run holds the first event of a pair until the second has happened (dynamic partial-order
// reduction, Flanagan and Godefroid, POPL 2005).
//
// It is an order of time, not of memory: a relaxed arrival, or a warp that executes an
// instruction together, orders events and publishes no writes. The race detector looks at those.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tmaasync_emulate/calls.hpp>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "state/launch.hpp"
#include "verify/phases.hpp"

namespace tmaasync_emulate {

struct Cluster;
struct Cta;
struct Fiber;
struct Flight;
struct Meeting;

// The effect of an access at which threads synchronise. A post reads and writes a signal, whose
// epoch it increases.
enum class SyncAccess : uint8_t { kRead, kWrite, kReadAndWrite, kPost };

class SyncOrder {
public:
    static constexpr std::size_t kNone = SIZE_MAX;
    static constexpr uint64_t kNoReduction = 0;

    SyncOrder(Interleaving& given, uint64_t threads);

    // Called before a launch starts, which another launch of its stream precedes.
    void begin_after(const Launch& previous, const Launch& launch);
    // Called at the end of all launches.
    void hand_over();

    // --- operations of threads ---

    // Waits while the interleaving holds the thread's next operation.
    void hold(Fiber& fiber);
    // Called when nothing goes on: lets one of the held events happen. False if none is held.
    bool give_up_one();
    // Counts the operation. What it issues lands later, with all that happens before it.
    Synced count(Fiber& fiber);
    std::shared_ptr<const Synced> issue(Fiber& fiber);

    // --- barriers ---

    void begin(BarrierKey key) { phases_[key] = {}; }
    void arrive(BarrierKey key, const Synced& arrival);
    void land(BarrierKey key, const Synced& landing);
    void expect(Fiber& fiber, BarrierKey key);
    void complete(BarrierKey key);
    // A wait that has seen the last phase complete.
    void pass(Fiber& fiber, BarrierKey key);
    void join_published(const Fiber& fiber, BarrierKey key);

    // --- threads that execute together ---

    void join_lanes(const Meeting& meeting);
    void arrive_at_cluster(const Fiber& fiber);
    void complete_cluster(const Cluster& cluster);
    void wait_for_cluster(const Fiber& fiber);
    void commit_mmas(const Fiber& fiber);
    void wait_for_mmas(const Fiber& fiber, std::size_t group);

    // --- accesses at which threads synchronise ---

    // Returns a number for the operation of an atomic operation whose order among others with this
    // number is no matter: its thread does not use the result. 0 if it is none.
    uint64_t reduction_of(const Fiber& fiber, const AtomicForm& form) const;
    void access(
        Fiber& fiber,
        uintptr_t address,
        uint64_t bytes,
        SyncAccess access,
        uint64_t reduction = kNoReduction
    );
    // Called after a post, and after a wait that has seen an epoch. A wait blocks: it precedes no
    // post that ends it, and later posts are no matter.
    void note_post(uintptr_t word, uint32_t epoch);
    void note_wait(Fiber& fiber, uintptr_t word, uint32_t epoch);
    // Called when the thread's last atomic operation has changed nothing.
    void note_unchanged(const Fiber& fiber) { last_accesses_[thread_of(fiber)].is_poll = true; }
    // Counts a request for a cluster; true if this run refuses it. The chip may refuse any.
    bool refuses(Fiber& fiber);
    void note_grant(Fiber& fiber);

    // --- copies ---

    // Index of the copy in flight that lands next; kNone if all are held.
    std::size_t next_landing(Cluster& cluster);

private:
    struct Held {
        Hold hold;
        bool is_done = false;
        bool is_awaited = false;
    };
    static constexpr uintptr_t kWordBytes = 4;
    using Events = std::vector<SyncEvent>;
    struct Touch {
        SyncAccess access;
        uint64_t operation;  // of a reduction

        bool reduces() const { return operation != kNoReduction; }
        bool writes() const { return access != SyncAccess::kRead; }
        bool reads() const {
            const bool returns = access == SyncAccess::kReadAndWrite || access == SyncAccess::kPost;
            return !writes() || (returns && !reduces());
        }
    };
    struct Post {
        uint32_t epoch;
        Clock published;
    };
    // The accesses of a word from a write to the next one. Reductions with one operation are one
    // write, until a read comes between them.
    struct Version {
        Events writes;
        Events reads;
        uint64_t operation = kNoReduction;  // of all of the writes
        uint64_t number = 0;

        Events all() const;
    };
    // The last accesses of a word.
    struct Place {
        uint64_t window = 0;  // of shared memory; 0 for global memory
        uintptr_t word = 0;
        Version now, before, earlier;
        Events waits;             // for a signal
        std::vector<Post> posts;  // since other writes
        Clock written;
    };
    struct LastAccess {
        uintptr_t address = 0;
        uintptr_t site = 0;
        uint64_t number = 0;
        uint64_t signature = 0;  // its part of the run's
        bool is_poll = false;    // it changed nothing
    };

    uint64_t thread_of(const Fiber& fiber) const;
    SyncEvent event_of(const Fiber& fiber, uint64_t number) const;
    // Joins what a thread learns. Lanes of a warp often know and learn the same.
    void learn(const Fiber& fiber, const Clock& published);
    // Publishes the thread's operations so far, and what happens before them.
    void publish(const Fiber& fiber, Clock& target) const;
    void check_phase_is_known(BarrierKey key, const Phases& phases, const Synced& arrival);
    // `phase` is the barrier's.
    void add_pair(const UnorderedPair& pair, uint64_t phase);
    void sign(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
    void reach(const Fiber& fiber, uintptr_t word, const Synced& now, const Touch& touch);
    // Adds the pairs of an access with unordered ones, and the events that come before both.
    void compare(
        const Place& place, const Events& earlier, const Events& context, const Synced& now
    );
    void compare_with(
        const Place& place,
        const Version& version,
        const Version& before,
        const Synced& now,
        const Touch& touch
    );
    Held* held(const SyncEvent& event);
    bool is_landing_held(const Flight& flight);
    void happen(const SyncEvent& event);

    Interleaving& given_;
    Agent agents_;
    std::vector<Held> held_;
    std::vector<Clock> known_;      // by thread, without its own operations
    std::vector<uint64_t> counts_;  // of the operations of each thread
    std::unordered_map<uint64_t, LastAccess> last_accesses_;
    std::map<BarrierKey, Phases> phases_;
    std::map<uint64_t, Clock> gathered_;   // published by arrivals at each cluster's barrier
    std::map<uint64_t, Clock> completed_;  // published by its last completed phase
    std::map<std::pair<uint64_t, std::size_t>, Clock> mmas_;  // by warpgroup and its wgmma group
    std::map<std::tuple<uint64_t, uint64_t>, Place> places_;
    std::set<std::array<uint64_t, 6>> known_pairs_;
    std::vector<UnorderedPair> pairs_;
    Clock learned_before_, learned_, learned_after_;  // of the last call of learn()
};

// The number of a CTA in the grid.
uint64_t cta_number(const Cluster& cluster, const Cta& cta);

inline BarrierKey key_of(const Cluster& cluster, const Cta& cta, uint32_t offset) {
    return {cta_number(cluster, cta), offset};
}

}  // namespace tmaasync_emulate
