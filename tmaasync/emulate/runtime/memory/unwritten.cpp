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

Words wrong_wait(const Fiber& reader, const Cta& cta, uint32_t offset) {
    for (const Mbarrier& barrier : cta.barriers) {
        if (barrier.offset != offset) continue;
        if (barrier.history.gave_up_last.fiber == &reader) {
            return ". The mbarrier.try_wait of " + name_of(barrier.history.gave_up_last) +
                   " returned false, as it may at any time: repeat it until it returns true";
        }
        if (!barrier.history.passed_at_first.fiber) continue;
        return ". The wait of " + name_of(barrier.history.passed_at_first) +
               " names parity 1, for which a new barrier does not wait: the first phase has parity "
               "0";
    }
    return "";
}

// Names the wait that must precede the read of a TMA load's target, or of a copy between CTAs.
static Words remedy_for_flight(const Fiber& reader, const Flight& flight) {
    const Words phase = "its phase of " + barrier_at(flight.barrier);
    if (flight.target == reader.cta) {
        return "wait for " + phase + " first" + wrong_wait(reader, *flight.target, flight.barrier);
    }
    return "a thread of that CTA waits for " + phase +
           ", and then cluster_sync() lets the others go on";
}

// Number of groups that the thread committed after the copy's; -1 if the copy is not committed.
static int groups_after(const Fiber& issuer, const ThreadCopy& copy) {
    const auto& groups = issuer.copies.groups;
    const auto own = std::lower_bound(groups.begin(), groups.end(), copy.epoch);
    return own == groups.end() ? -1 : static_cast<int>(groups.end() - own) - 1;
}

static Words remedy_for_thread_copy(const Fiber& issuer, const ThreadCopy& copy) {
    for (const Flight& flight : issuer.cluster->flights) {
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

static Words capitalised(Words words) {
    words.capitalise();
    return words;
}

Words remedy_for_unwritten(
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
static void look_for_writer(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    constexpr int kTurns = 64;  // turns of every other thread that can run
    Cluster& cluster = *fiber.cluster;
    for (int turn = 0; turn < kTurns; ++turn) {
        if (is_alone(cluster) || cluster.detector->is_written(rank, offset, bytes)) return;
        if (find_in_flight(cluster, cluster.ctas[rank], offset, bytes)) return;
        spin(fiber, {.instruction = "a read of shared memory that nothing has written"});
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
    fail(
        fiber, "a read of " + decimal(bytes) + " bytes at " + shared_at(offset) +
                   of_cta(fiber, cta) + ", which nothing has written. " +
                   remedy_for_unwritten(
                       fiber, cta, offset, bytes,
                       "Load or initialise it, and let the readers wait for that"
                   )
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
