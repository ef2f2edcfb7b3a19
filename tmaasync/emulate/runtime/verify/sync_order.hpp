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
#include <tuple>
#include <unordered_map>
#include <vector>

#include "state/launch.hpp"
#include "verify/phases.hpp"
#include "verify/places.hpp"

namespace tmaasync_emulate {

struct Cluster;
struct Cta;
struct Fiber;
struct Flight;
struct Meeting;

class SyncOrder {
public:
    static constexpr std::size_t kNone = SIZE_MAX;

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

    Commuting reduction_of(const Fiber& fiber, const AtomicForm& form) const;
    // If the memory differs from the `expected` bytes, the access is a read.
    void access(
        Fiber& fiber,
        uintptr_t address,
        uint64_t bytes,
        SyncAccess access,
        const Commuting& reduction = {},
        const void* expected = nullptr
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
    struct LastAccess {
        uintptr_t address = 0;
        uintptr_t site = 0;
        uint64_t number = 0;
        uint64_t signature = 0;  // its part of the run's
        bool is_poll = false;    // it changed nothing
        uint64_t version = 0;    // that it has read, if it is a poll of one word
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
    // Returns the version that it reads or writes. `polled` is the one that the same poll has read
    // before; null if this is the first time.
    uint64_t reach(
        const Fiber& fiber,
        uintptr_t word,
        const Synced& now,
        const Touch& touch,
        const uint64_t* polled = nullptr
    );
    // Forgets that a poll came before later writes to the word: it comes again.
    void forget_poll(SyncPlace& place, const SyncEvent& poll);
    // Adds the pairs of an access with unordered ones, and the events that come before both.
    void compare(
        const SyncPlace& place,
        const SyncVersion& version,
        bool are_writes,
        const Events& context,
        const Synced& now,
        const Touch& touch
    );
    void compare_with(
        const SyncPlace& place,
        const SyncVersion& version,
        const SyncVersion& before,
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
    std::map<std::tuple<uint64_t, uint64_t>, SyncPlace> places_;
    std::set<std::array<uint64_t, 6>> known_pairs_;
    std::vector<UnorderedPair> pairs_;
    Clock learned_before_, learned_, learned_after_;  // of the last call of learn()
};

// The address of a thread's call in the kernel's code; 0 outside.
uint64_t call_of(const Fiber& fiber);

// The number of a CTA in the grid.
uint64_t cta_number(const Cluster& cluster, const Cta& cta);

inline BarrierKey key_of(const Cluster& cluster, const Cta& cta, uint32_t offset) {
    return {cta_number(cluster, cta), offset};
}

}  // namespace tmaasync_emulate
