// Reports of accesses to the race detector. Without a detector they do nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "machine.hpp"

namespace tmaasync_emulate {

// --- programmatic dependent launches -------------------------------------------------------------

inline void note_grid_wait(Fiber& fiber) {
    if (!fiber.cluster->launch().fresh) return;
    Detector* detector = fiber.cluster->detector();
    fiber.cta->grid_waits.push_back(
        {fiber.number, detector ? detector->epoch_of(fiber.number) : 0}
    );
}

// True if the thread is ordered after a griddepcontrol.wait; without a detector, after any.
inline bool has_awaited_grids(Fiber& fiber) {
    const Detector* detector = fiber.cluster->detector();
    for (const Cta& cta : fiber.cluster->ctas()) {
        for (const GridWait& wait : cta.grid_waits) {
            if (!detector || detector->knows(fiber.number, wait.thread, wait.epoch)) return true;
        }
    }
    return false;
}

// Called before a thread or a copy accesses global memory.
inline void check_grids_awaited(Fiber& fiber, uintptr_t address) {
    if (!fiber.cluster->launch().is_fresh(address) || has_awaited_grids(fiber)) return;
    fiber.cluster->fail(
        fiber, "an access to " + hexadecimal(address) +
                   ", in an array that the kernel before wrote, ahead of "
                   "wait_for_previous_grids(): with pdl=True this grid may run before that one "
                   "has ended. Call it first, in every thread or in one that the others then meet"
    );
}

// --- ordinary accesses ---------------------------------------------------------------------------

// Called before any write that is not an mbarrier instruction.
inline void check_no_barrier(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    const Cta& cta = fiber.cluster->ctas()[rank];
    const std::size_t end = std::min<std::size_t>((offset + bytes + 7) / 8, cta.barrier_at.size());
    for (std::size_t word = offset / 8; word < end; ++word) {
        const int32_t index = cta.barrier_at[word];
        if (index < 0 || !cta.barriers[static_cast<std::size_t>(index)].is_valid) continue;
        fiber.cluster->fail(
            fiber, "a write of " + decimal(bytes) + " bytes at shared offset " + decimal(offset) +
                       " overwrites " + barrier_at(static_cast<uint32_t>(word) * 8) +
                       of_cta(fiber, cta) +
                       ", which is in use. Check the index, or call invalidate() first"
        );
    }
}

inline bool may_repeat(Operation operation, uint64_t bytes) {
    return operation == Operation::kWrite && bytes <= std::tuple_size_v<decltype(Repeat::held)>;
}

// Called before a store: keeps the old bytes if another lane has just stored to them.
inline void note_repeat(Fiber& fiber, const void* pointer, uint64_t bytes) {
    const std::optional<Race> race = fiber.cluster->detector()->take_repeated();
    if (!race) return;
    Repeat repeat{static_cast<const uint8_t*>(pointer), static_cast<uint32_t>(bytes), {}, *race};
    std::memcpy(repeat.held.data(), pointer, bytes);
    fiber.repeat = std::make_unique<Repeat>(repeat);
}

inline void touch_shared(
    Fiber& fiber, Operation operation, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes
) {
    Detector& detector = *fiber.cluster->detector();
    Actor actor = detector.ordinary(fiber.number, fiber.site, operation);
    std::optional<View> before_store;
    if (fiber.store_agent != kNoAgent) {
        before_store = detector.view_of(fiber.number);
        actor.agent = fiber.store_agent;
        actor.epoch = fiber.store_epoch;
        actor.view = &*before_store;
    }
    actor.may_repeat = may_repeat(operation, bytes);
    detector.shared(actor, rank, offset, bytes, writes);
    fiber.cluster->stop_if_race(fiber);
    if (actor.may_repeat) note_repeat(fiber, fiber.cluster->ctas()[rank].window + offset, bytes);
}

inline bool overlaps(uint32_t a, uint32_t a_bytes, uint32_t b, uint32_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

// A copy in flight to given bytes of a CTA. All members are null if there is none.
struct InFlight {
    const Flight* flight = nullptr;
    const ThreadCopy* copy = nullptr;
    const Fiber* issuer = nullptr;

    explicit operator bool() const { return issuer != nullptr; }
};

inline InFlight find_in_flight(Cluster& cluster, const Cta& cta, uint32_t offset, uint32_t bytes) {
    for (const Flight& flight : cluster.flights()) {
        if (flight.kind == Flight::Kind::kArrival || flight.target != &cta) continue;
        if (!overlaps(flight.shared, flight.bytes, offset, bytes)) continue;
        return {.flight = &flight, .issuer = flight.issuer};
    }
    for (const Fiber& fiber : cluster.fibers()) {
        if (fiber.cta != &cta) continue;
        for (const ThreadCopy& copy : fiber.copies) {
            if (overlaps(copy.shared, copy.bytes, offset, bytes)) return {nullptr, &copy, &fiber};
        }
    }
    return {};
}

// Names a wait that explains why a copy is still in flight: a try_wait that returned false and was
// not repeated, or a wait for parity 1 in a barrier's first phase, which returns at once.
inline Words wrong_wait(const Fiber& reader, const Cta& cta, uint32_t offset) {
    for (const Mbarrier& barrier : cta.barriers) {
        if (barrier.offset != offset) continue;
        if (barrier.gave_up_last.fiber == &reader) {
            return ". The mbarrier.try_wait of " + name_of(barrier.gave_up_last) +
                   " returned false, as it may at any time: repeat it until it returns true";
        }
        if (!barrier.passed_at_first.fiber) continue;
        return ". The wait of " + name_of(barrier.passed_at_first) +
               " names parity 1, for which a new barrier does not wait: the first phase has parity "
               "0";
    }
    return "";
}

// Names the wait that must precede the read of a TMA load's target, or of a copy between CTAs.
inline Words remedy_for_flight(const Fiber& reader, const Flight& flight) {
    const Words phase = "its phase of " + barrier_at(flight.barrier);
    if (flight.target == reader.cta) {
        return "wait for " + phase + " first" + wrong_wait(reader, *flight.target, flight.barrier);
    }
    return "a thread of that CTA waits for " + phase +
           ", and then cluster_sync() lets the others go on";
}

// Number of groups that the thread committed after the copy's; -1 if the copy is not committed.
inline int groups_after(const Fiber& issuer, const ThreadCopy& copy) {
    const auto& groups = issuer.copy_groups;
    const auto own = std::lower_bound(groups.begin(), groups.end(), copy.epoch);
    return own == groups.end() ? -1 : static_cast<int>(groups.end() - own) - 1;
}

inline Words remedy_for_thread_copy(const Fiber& issuer, const ThreadCopy& copy) {
    for (const Flight& flight : issuer.cluster->flights()) {
        const bool is_arrival = flight.kind == Flight::Kind::kArrival;
        if (!is_arrival || flight.issuer != &issuer || flight.epoch < copy.epoch) continue;
        return "wait for the phase of " + barrier_at(flight.barrier) + " that it arrives on";
    }
    const int after = groups_after(issuer, copy);
    const Words wait = "cp_async_wait<" + decimal(std::max(after, 0)) + ">()";
    return (after < 0 ? "that thread calls cp_async_commit() and " + wait
                      : "that thread waits with " + wait) +
           ", and then all threads meet: __syncthreads()";
}

inline Words capitalised(Words words) {
    words.capitalise();
    return words;
}

// The remedy where a thread, wgmma or TMA reads bytes that nothing has written.
inline Words remedy_for_unwritten(
    const Fiber& reader, const Cta& cta, uint32_t offset, uint32_t bytes, const char* otherwise
) {
    const InFlight found = find_in_flight(*reader.cluster, cta, offset, bytes);
    if (!found) return otherwise + on_full_barrier_of(offset);
    const Fiber& issuer = *found.issuer;
    const auto to = [](const auto& copy) {
        return ", " + decimal(copy.bytes) + " bytes to " + place_at(copy.shared) + ": ";
    };
    if (found.flight) {
        return capitalised(name_of(*found.flight)) + " to these bytes is in flight, issued by " +
               name_of_issuer(issuer, found.flight->site, reader) + to(*found.flight) +
               remedy_for_flight(reader, *found.flight);
    }
    return "A cp.async to these bytes is in flight, issued by " +
           name_of_issuer(issuer, found.copy->site, reader) + to(*found.copy) +
           remedy_for_thread_copy(issuer, *found.copy);
}

// Called before a read of unwritten bytes: lets other threads run until one of them writes the
// bytes or issues a copy to them. The report then names that copy.
inline void look_for_writer(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    constexpr int kTurns = 64;  // turns of every other thread that can run
    Cluster& cluster = *fiber.cluster;
    for (int turn = 0; turn < kTurns; ++turn) {
        if (cluster.is_alone() || cluster.detector()->is_written(rank, offset, bytes)) return;
        if (find_in_flight(cluster, cluster.ctas()[rank], offset, bytes)) return;
        cluster.spin(fiber, {.instruction = "a read of shared memory that nothing has written"});
    }
}

// Called before a read: shared memory holds nothing until it is written. If the bytes are written
// meanwhile, the access itself reports a race.
inline void check_is_written(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    const auto is_written = [&] {
        return fiber.cluster->detector()->is_written(rank, offset, bytes);
    };
    if (is_written()) return;
    const uintptr_t site = fiber.site;
    look_for_writer(fiber, rank, offset, bytes);
    fiber.site = site;
    if (is_written()) return;
    const Cta& cta = fiber.cluster->ctas()[rank];
    fiber.cluster->fail(
        fiber, "a read of " + decimal(bytes) + " bytes at " + shared_at(offset) +
                   of_cta(fiber, cta) + ", which nothing has written. " +
                   remedy_for_unwritten(
                       fiber, cta, offset, bytes,
                       "Load or initialise it, and let the readers wait for that"
                   )
    );
}

inline void touch_global(
    Fiber& fiber,
    Operation operation,
    uintptr_t address,
    uint64_t bytes,
    bool writes,
    bool is_system = false
) {
    check_grids_awaited(fiber, address);
    Detector& detector = *fiber.cluster->detector();
    Actor actor = detector.ordinary(fiber.number, fiber.site, operation, is_system);
    actor.may_repeat = may_repeat(operation, bytes);
    detector.global(actor, address, bytes, writes);
    fiber.cluster->stop_if_race(fiber);
    if (actor.may_repeat) note_repeat(fiber, reinterpret_cast<const void*>(address), bytes);
}

// --- copies --------------------------------------------------------------------------------------

// Thrown when a copy reads shared memory that nothing has written; holds the first of these bytes.
struct UnwrittenSource {
    uint32_t offset;
    uint32_t bytes;
};

// The first contiguous run of unwritten bytes in a range.
struct Unwritten {
    uint32_t offset = 0;
    uint32_t bytes = 0;
};

inline Unwritten unwritten_part(
    Detector& detector, uint32_t rank, uint32_t offset, uint32_t bytes
) {
    Unwritten found;
    if (detector.is_all_written(rank, offset, bytes)) return found;
    for (uint32_t at = offset; at < offset + bytes; ++at) {
        const bool is_written = detector.is_written(rank, at, 1);
        if (is_written && found.bytes) break;
        if (is_written) continue;
        if (!found.bytes) found.offset = at;
        ++found.bytes;
    }
    return found;
}

// Receives the accesses that the TMA engine reports for one copy.
class CopyObserver {
public:
    CopyObserver(Cluster& cluster, uint32_t rank, const Actor* shared, const Actor* global)
        : cluster_(cluster), rank_(rank), shared_(shared), global_(global) {}

    void shared(uint32_t offset, uint32_t bytes, bool writes) {
        if (shared_) cluster_.detector()->shared(*shared_, rank_, offset, bytes, writes);
    }

    void global(const void* pointer, uint64_t bytes, bool writes) {
        if (!global_) return;
        cluster_.detector()->global(*global_, reinterpret_cast<uintptr_t>(pointer), bytes, writes);
    }

    // Checks a unit that TMA reads. Without a detector, a partly written unit goes unnoticed.
    void source(const uint8_t* window, uint32_t offset, uint32_t bytes) const {
        if (is_poison(poison_, window, offset)) throw UnwrittenSource{offset, bytes};
        if (!shared_) return;
        const auto rank = static_cast<uint32_t>(
            (reinterpret_cast<uintptr_t>(window) - cluster_.windows()) / kWindowBytes
        );
        const Unwritten found = unwritten_part(*cluster_.detector(), rank, offset, bytes);
        if (found.bytes) throw UnwrittenSource{found.offset, found.bytes};
    }

    // Rows are read in whole units, so up to 15 bytes beyond the last element are not checked.
    bool is_inside(const void* pointer, uint64_t bytes) const {
        const auto start = reinterpret_cast<uintptr_t>(pointer);
        const uint64_t unread = std::min<uint64_t>(bytes, kUnitBytes) - 1;
        return cluster_.launch().may_hold(start, bytes - unread);
    }

private:
    Cluster& cluster_;
    uint32_t rank_;
    const Actor* shared_;
    const Actor* global_;
    const PoisonedWindow& poison_ = poisoned_window();
};

inline Agent bulk_agent(Cluster& cluster, Agent& agent) {
    if (agent == kNoAgent) agent = cluster.detector()->new_agent();
    return agent;
}

// --- mbarriers -----------------------------------------------------------------------------------

inline Access access_in(
    const Cluster& cluster, Agent thread, Epoch epoch, uintptr_t site, Operation operation
) {
    Access access{.agent = thread, .epoch = epoch, .thread = thread, .site = site};
    access.cluster = static_cast<uint32_t>(cluster.index());
    access.operation = operation;
    access.is_write = true;
    return access;
}

inline void report_init(Fiber& fiber, const Cta& home, const Mbarrier& barrier, Operation use) {
    Detector& detector = *fiber.cluster->detector();
    detector.report({
        access_in(
            *fiber.cluster, barrier.initialiser, barrier.initialised, barrier.init_site,
            Operation::kBarrierInit
        ),
        access_in(*fiber.cluster, fiber.number, detector.epoch_of(fiber.number), fiber.site, use),
        {Space::kShared, home.rank, barrier.offset},
        use == Operation::kTmaLoad,
    });
    fiber.cluster->stop_if_race(fiber);
}

// Checks a thread's use of a barrier: the init happens before it, or the init's fence precedes a
// relaxed arrival (as of barrier.cluster.arrive.relaxed) that the thread has waited for.
inline void check_init_is_seen(
    Fiber& fiber, const Cta& home, const Mbarrier& barrier, Operation use = Operation::kBarrierUse
) {
    const Detector& detector = *fiber.cluster->detector();
    if (detector.knows(fiber.number, barrier.initialiser, barrier.initialised)) return;
    const bool is_fenced = barrier.is_init_fenced;
    if (is_fenced && detector.knows_arrival(fiber.number, barrier.initialiser, barrier.fenced)) {
        return;
    }
    report_init(fiber, home, barrier, use);
}

// Checks TMA's use of a barrier: a fence made the init visible to the async proxy.
inline void check_init_is_fenced(Fiber& fiber, const Cta& home, const Mbarrier& barrier) {
    check_init_is_seen(fiber, home, barrier);
    const Detector& detector = *fiber.cluster->detector();
    if (barrier.is_init_fenced) return;
    if (detector.is_published(fiber.number, barrier.initialiser, barrier.initialised)) return;
    report_init(fiber, home, barrier, Operation::kTmaLoad);
}

inline void fence_inits(Fiber& fiber) {
    for (Cta& cta : fiber.cluster->ctas()) {
        for (Mbarrier& barrier : cta.barriers) {
            if (barrier.initialiser != fiber.number || barrier.is_init_fenced) continue;
            barrier.is_init_fenced = true;
            barrier.fenced = fiber.cluster->detector()->epoch_of(fiber.number);
        }
    }
}

// --- the registers of wgmma ----------------------------------------------------------------------

inline void report_registers(
    Fiber& fiber, uintptr_t before, Operation first, Operation second, bool is_a
) {
    const uint32_t kind = is_a ? 1 : 0;
    fiber.cluster->detector()->report({
        access_in(*fiber.cluster, fiber.number, 0, before, first),
        access_in(*fiber.cluster, fiber.number, 0, fiber.site, second),
        {Space::kRegisters, fiber.cta->rank, kind},
    });
    fiber.cluster->stop_if_race(fiber);
}

// Checks an access of a thread to its own stack, which holds its wgmma registers.
inline void touch_registers(Fiber& fiber, uintptr_t address, uint64_t bytes, bool writes) {
    for (Accumulators& held : fiber.accumulators) {
        if (address >= held.end || address + bytes <= held.start) continue;
        if (held.is_a && !writes) continue;
        const Agent agent = fiber.warpgroup->agent;
        const bool is_done = fiber.cluster->detector()->knows(fiber.number, agent, held.epoch);
        if (!is_done) {
            return report_registers(
                fiber, held.site, Operation::kWgmma, Operation::kRegisters, held.is_a
            );
        }
        held.is_touched = true;
        held.touched_at = fiber.site;
    }
}

// Bytes of one thread's accumulators.
inline uint32_t bytes_of_accumulators(const Mma& mma) {
    return mma.columns / 2 * (mma.sum == MmaSum::kHalf ? 2 : 4);
}

// Called before a wgmma: a wgmma.fence must follow the thread's own accesses to the registers.
inline void check_registers(Fiber& fiber, uintptr_t start, uintptr_t end, bool is_a) {
    Accumulators* mine = nullptr;
    for (Accumulators& held : fiber.accumulators) {
        if (start >= held.end || end <= held.start) continue;
        if (held.is_touched) {
            return report_registers(
                fiber, held.touched_at, Operation::kRegisters, Operation::kWgmma, is_a
            );
        }
        if (held.start == start && held.end == end && held.is_a == is_a) mine = &held;
    }
    if (!mine) {
        // Another wgmma may use the registers of a finished one.
        std::erase_if(fiber.accumulators, [&](const Accumulators& held) {
            return start < held.end && end > held.start;
        });
        fiber.accumulators.push_back({start, end, is_a});
        mine = &fiber.accumulators.back();
    }
    mine->epoch = fiber.mma_commits + 1;
    mine->site = fiber.site;
}

inline void check_mma_fence(Fiber& fiber, const Mma& mma) {
    if (!fiber.has_mma_fence) {
        return report_registers(fiber, fiber.site, Operation::kRegisters, Operation::kWgmma, false);
    }
    const auto start = reinterpret_cast<uintptr_t>(mma.accumulators);
    check_registers(fiber, start, start + bytes_of_accumulators(mma), false);
    if (!mma.a_in_registers) return;
    const auto a = reinterpret_cast<uintptr_t>(mma.a_held);
    check_registers(fiber, a, a + sizeof(mma.a_registers), true);
}

inline void fence_registers(Fiber& fiber) {
    for (Accumulators& held : fiber.accumulators) held.is_touched = false;
}

// --- the end of a CTA ----------------------------------------------------------------------------

// True if the peer's access happens before the next access of some thread of the CTA.
template <typename Knows>
bool is_seen_by_cta(const Fiber& fiber, const Access& remote, const Knows& knows) {
    const uint32_t threads = fiber.cluster->launch().threads();
    const uint32_t first = fiber.cta->rank * threads;
    for (uint32_t thread = first; thread < first + threads; ++thread) {
        if (knows(thread, remote.agent, remote.epoch)) return true;
    }
    return false;
}

// Peer accesses to this CTA's memory that may still run when the CTA exits.
inline std::vector<Access> unfinished_accesses(const Fiber& fiber) {
    const Detector& detector = *fiber.cluster->detector();
    std::vector<Access> found;
    for (const Access& remote : fiber.cta->remote) {
        const auto knows = [&](auto... what) { return detector.knows(what...); };
        if (!is_seen_by_cta(fiber, remote, knows)) found.push_back(remote);
    }
    // A relaxed arrival orders no access, but is itself over once a thread has waited for its
    // phase.
    for (const Access& remote : fiber.cta->remote_arrivals) {
        const auto knows = [&](auto... what) { return detector.knows_arrival(what...); };
        if (!is_seen_by_cta(fiber, remote, knows)) found.push_back(remote);
    }
    return found;
}

// Called by the CTA's last thread: all peer accesses to the CTA's memory must have happened before.
inline void check_peers_are_done(Fiber& fiber) {
    const uint32_t threads = fiber.cluster->launch().threads();
    for (const Access& remote : unfinished_accesses(fiber)) {
        const Words peer =
            remote.operation == Operation::kTmaPush
                ? "TMA had copied its shared memory to another CTA"
                : "CTA " + decimal(remote.thread / threads) + " had reached into its shared memory";
        const Fiber& who = fiber.cluster->fibers()[remote.thread];
        fiber.cluster->report_fault(
            who,
            "CTA " + decimal(fiber.cta->rank) +
                " of the cluster has ended, and nothing kept it from doing so before " + peer +
                ". Let no CTA leave before its peers are done: cluster_sync() at the end of the "
                "kernel",
            remote.site
        );
        fiber.cluster->fail(fiber, "");
    }
}

}  // namespace tmaasync_emulate
