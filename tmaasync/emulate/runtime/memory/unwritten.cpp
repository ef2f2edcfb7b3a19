#include "memory/unwritten.hpp"

#include "schedule/faults.hpp"
#include "state/names.hpp"

namespace tmaasync_emulate {

// A copy in flight to given bytes of a CTA. All members are null if there is none.
struct InFlight {
    const Flight* flight = nullptr;
    const ThreadCopy* copy = nullptr;
    const Fiber* issuer = nullptr;

    explicit operator bool() const { return issuer != nullptr; }
};

static InFlight find_in_flight(Cluster& cluster, const Cta& cta, uint32_t offset, uint32_t bytes) {
    for (const Flight& flight : cluster.flights) {
        if (flight.kind == Flight::Kind::kArrival || flight.target != &cta) continue;
        if (!overlaps(flight.shared, flight.bytes, offset, bytes)) continue;
        return {.flight = &flight, .issuer = flight.issuer};
    }
    for (const Fiber& fiber : cluster.fibers) {
        if (fiber.cta != &cta) continue;
        for (const ThreadCopy& copy : fiber.copies.pending) {
            if (overlaps(copy.shared, copy.bytes, offset, bytes)) return {nullptr, &copy, &fiber};
        }
    }
    return {};
}

Reason wrong_wait(const Fiber& reader, const Cta& cta, uint32_t offset) {
    for (const Mbarrier& barrier : cta.barriers) {
        if (barrier.offset != offset) continue;
        const BarrierHistory& history = barrier.history;
        if (history.gave_up_last.fiber == &reader) {
            return {FaultKind::kGaveUp, name_of(history.gave_up_last)};
        }
        if (!history.passed_at_first.fiber) continue;
        return {FaultKind::kPassedAtFirst, name_of(history.passed_at_first)};
    }
    return {};
}

const Mbarrier* barrier_of(const Cta& cta, uint32_t offset) {
    const auto found =
        std::find_if(cta.barriers.begin(), cta.barriers.end(), [&](const Mbarrier& one) {
            return one.offset == offset;
        });
    return found == cta.barriers.end() ? nullptr : &*found;
}

Reason early_phase(
    const Cluster& cluster, const Cta& owner, const Mbarrier& barrier, uint64_t phase
) {
    const BarrierHistory& history = barrier.history;
    const int64_t expected = history.expected_in(phase);
    int64_t delivered = expected;
    for (const LateLoad& late : history.late) {
        if (late.phase == phase) delivered += late.bytes;
    }
    for (const Flight& flight : cluster.flights) {
        const bool is_of_phase =
            flight.credited == &owner && flight.barrier == barrier.offset && flight.phase == phase;
        if (is_of_phase && flight.kind != Flight::Kind::kArrival) delivered += flight.bytes;
    }
    return {FaultKind::kEndedEarly, barrier_at(barrier.offset), phase, expected, delivered};
}

Reason ended_early(const Cluster& cluster, const Flight& flight) {
    const Mbarrier* const barrier = barrier_of(*flight.credited, flight.barrier);
    if (!barrier || barrier->phase <= flight.phase) return {};
    if (barrier->phase - flight.phase > barrier->history.expected_before.size()) return {};
    return early_phase(cluster, *flight.credited, *barrier, flight.phase);
}

const Mbarrier* barrier_in(const Cta& cta, uint32_t offset, uint32_t bytes) {
    const std::size_t end = std::min<std::size_t>((offset + bytes + 7) / 8, cta.barrier_at.size());
    for (std::size_t word = offset / 8; word < end; ++word) {
        const int32_t index = cta.barrier_at[word];
        if (index < 0) continue;
        const Mbarrier& barrier = cta.barriers[static_cast<std::size_t>(index)];
        if (barrier.is_valid) return &barrier;
    }
    return nullptr;
}

const EndedWait* last_wait(const Fiber& fiber, uint32_t order, bool counts_loads) {
    const auto& waits = fiber.past.waits;
    const auto found = std::find_if(waits.rbegin(), waits.rend(), [&](const EndedWait& wait) {
        const Mbarrier* const barrier = barrier_of(*wait.cta, wait.barrier);
        return wait.order <= order && barrier && (barrier->landed != 0) == counts_loads;
    });
    return found == waits.rend() ? nullptr : &*found;
}

// True if the thread's warp has expected bytes: a producer's, whose first wait names parity 1.
static bool is_producer(const Fiber& fiber, const Cta& cta) {
    return std::any_of(cta.barriers.begin(), cta.barriers.end(), [&](const Mbarrier& barrier) {
        const Fiber* const other = barrier.history.expected_last.fiber;
        return other && warp_number(*other) == warp_number(fiber);
    });
}

// A wait of the reader's warpgroup for parity 1 on a new barrier, which returned at once.
static Reason passed_at_first(const Fiber& reader, const Cta& cta) {
    constexpr uint32_t kWarps = 4;
    for (const Mbarrier& barrier : cta.barriers) {
        const Issuer& passed = barrier.history.passed_at_first;
        if (barrier.phase || !passed.fiber || passed.fiber->cta != reader.cta) continue;
        if (warp_number(*passed.fiber) / kWarps != warp_number(reader) / kWarps) continue;
        if (is_producer(*passed.fiber, cta)) continue;
        return {FaultKind::kPassedAtFirst, name_of(passed)};
    }
    return {};
}

// Names the reader's last wait for a load, if it was on another barrier than the flight's.
static Reason wait_for_other_load(const Fiber& reader, const Flight& flight) {
    const EndedWait* const wait = last_wait(reader, UINT32_MAX, true);
    if (!wait || wait->cta != reader.cta || wait->barrier == flight.barrier) return {};
    return {FaultKind::kLastWaitedFor, barrier_at(wait->barrier), line_of(reader, wait->site)};
}

// Names the wait that must precede the read of a TMA load's target, or of a copy between CTAs.
static Reason remedy_for_flight(const Fiber& reader, const Flight& flight, FaultKind otherwise) {
    const Mention barrier = barrier_at(flight.barrier);
    if (flight.credited != reader.cta) return {FaultKind::kPeerWaits, barrier};
    if (const Reason early = ended_early(*reader.cluster, flight)) return early;
    if (const Reason wrong = wrong_wait(reader, *flight.credited, flight.barrier)) {
        return {FaultKind::kWaitForPhase, barrier, wrong};
    }
    // wgmma and copies read later than they are issued.
    const bool is_ordinary = otherwise == FaultKind::kInitialise;
    const Reason other = is_ordinary ? wait_for_other_load(reader, flight) : Reason();
    return {FaultKind::kWaitForPhase, barrier, other};
}

// Number of groups that the thread committed after the copy's; -1 if the copy is not committed.
static int groups_after(const Fiber& issuer, const ThreadCopy& copy) {
    const auto& groups = issuer.copies.groups;
    const auto own = std::lower_bound(groups.begin(), groups.end(), copy.epoch);
    return own == groups.end() ? -1 : static_cast<int>(groups.end() - own) - 1;
}

static Reason remedy_for_thread_copy(const Fiber& issuer, const ThreadCopy& copy) {
    for (const Flight& flight : issuer.cluster->flights) {
        const bool is_arrival = flight.kind == Flight::Kind::kArrival;
        if (!is_arrival || flight.issuer != &issuer || flight.epoch < copy.epoch) continue;
        return {FaultKind::kWaitForArrival, barrier_at(flight.barrier)};
    }
    const int after = groups_after(issuer, copy);
    if (after < 0) return {FaultKind::kCommitAndWait, 0};
    return {FaultKind::kWaitForGroup, after};
}

Reason remedy_for_unwritten(
    const Fiber& reader, const Cta& cta, uint32_t offset, uint32_t bytes, FaultKind otherwise
) {
    const InFlight found = find_in_flight(*reader.cluster, cta, offset, bytes);
    if (!found) return {otherwise, full_barrier_of(offset), passed_at_first(reader, cta)};
    const auto in_flight = [&](Operation operation, const auto& copy, const Reason& remedy) {
        const Reason issuer = name_of({found.issuer, copy.site}, reader);
        return Reason(
            FaultKind::kInFlight, name_of(operation), issuer, copy.bytes, variable_at(copy.shared),
            remedy
        );
    };
    if (found.flight) {
        const Reason remedy = remedy_for_flight(reader, *found.flight, otherwise);
        return in_flight(operation_of(*found.flight), *found.flight, remedy);
    }
    const Reason remedy = remedy_for_thread_copy(*found.issuer, *found.copy);
    return in_flight(Operation::kThreadCopy, *found.copy, remedy);
}

// Called before a read of unwritten bytes: lets other threads run until one of them writes the
// bytes or issues a copy to them. The report then names that copy.
static void look_for_writer(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    constexpr int kTurns = 64;  // turns of every other thread that can run
    Cluster& cluster = *fiber.cluster;
    for (int turn = 0; turn < kTurns; ++turn) {
        if (is_alone(cluster) || cluster.detector->is_written(rank, offset, bytes)) return;
        if (find_in_flight(cluster, cluster.ctas[rank], offset, bytes)) return;
        spin(fiber, {.activity = Activity::kUnwrittenRead});
    }
}

void check_is_written(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    const auto is_written = [&] {
        return fiber.cluster->detector->is_written(rank, offset, bytes);
    };
    if (is_written()) return;
    const uintptr_t site = fiber.site;
    look_for_writer(fiber, rank, offset, bytes);
    fiber.site = site;
    if (is_written()) return;
    const Cta& cta = fiber.cluster->ctas[rank];
    break_rule(
        fiber, {FaultKind::kUnwrittenRead, bytes, shared_at(offset), of_cta(fiber, cta),
                remedy_for_unwritten(fiber, cta, offset, bytes, FaultKind::kInitialise)}
    );
}

Unwritten unwritten_part(Detector& detector, uint32_t rank, uint32_t offset, uint32_t bytes) {
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

}  // namespace tmaasync_emulate
