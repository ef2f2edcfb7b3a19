#include "copies/landing.hpp"

#include "barriers/mbarrier.hpp"
#include "copies/maps.hpp"
#include "copies/observer.hpp"
#include "copies/thread_copies.hpp"
#include "schedule/events.hpp"
#include "state/names.hpp"
#include "tma/bulk.hpp"
#include "tma/im2col.hpp"
#include "tma/tiled.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

// Copies from one CTA's shared memory to another's.
static uint32_t write_push(const Flight& flight, CopyObserver& target) {
    uint8_t* to = flight.target->window + flight.shared;
    const uint8_t* from = flight.source->window + flight.source_offset;
    detail::report_sources(target, flight.source->window, flight.source_offset, flight.bytes);
    if (flight.reduction) {
        bulk_reduction(flight.reduction->op, flight.reduction->type)(to, from, flight.bytes);
    } else {
        std::memmove(to, from, flight.bytes);
    }
    target.shared(flight.shared, flight.bytes, true);
    return flight.bytes;
}

// Reports the read of a push's source. Only the target's barrier shows that the read is over.
static void read_push(Cluster& cluster, const Flight& flight, const Actor& writer) {
    Actor reader = writer;
    reader.operation = Operation::kTmaPush;
    CopyObserver source(cluster, flight.source->rank, &reader, nullptr);
    source.shared(flight.source_offset, flight.bytes, false);
    flight.source->races.remote.push_back(
        {.agent = reader.agent,
         .epoch = reader.epoch,
         .thread = reader.thread,
         .site = reader.site,
         .operation = reader.operation}
    );
}

// The swizzle of a load plus one; 0 without a swizzled map. wgmma must read with the same swizzle.
static uint8_t pattern_of(const Flight& flight) {
    const bool has_map =
        flight.kind == Flight::Kind::kTiled || flight.kind == Flight::Kind::kIm2col;
    if (!has_map || flight.map.interleave != Interleave::kNone) return 0;
    return 1 + static_cast<uint8_t>(flight.map.swizzle);
}

// Writes the bytes and returns the number that is credited to the barrier.
static uint32_t write_flight(const Flight& flight, CopyObserver& observer) {
    uint8_t* window = flight.target->window;
    switch (flight.kind) {
        case Flight::Kind::kPush:
            return write_push(flight, observer);
        case Flight::Kind::kTiled:
            return tiled_load(flight.map, flight.at.data(), window, flight.shared, observer);
        case Flight::Kind::kIm2col:
            detail::check_kind(flight.map, kind_of(flight.mode));
            return im2col_load(
                flight.map, flight.at.data(), flight.offsets.data(), window, flight.shared, observer
            );
        case Flight::Kind::kBulk:
            return bulk_load(flight.global, flight.bytes, window, flight.shared, observer);
        case Flight::Kind::kResponse:
            std::memcpy(window + flight.shared, flight.response.data(), flight.bytes);
            observer.shared(flight.shared, flight.bytes, true);
            return flight.bytes;
        case Flight::Kind::kArrival:
            break;
    }
    __builtin_unreachable();
}

static void record_landing(
    Cluster& cluster, const Flight& flight, const Mbarrier& barrier, uint32_t bytes
) {
    Event event = on_barrier(EventKind::kLoadLanded, *flight.credited, barrier);
    event.shared = flight.shared;
    event.bytes = bytes;
    event.sequence = flight.sequence;
    record(cluster, *flight.target, event);
}

// The fault of a copy that overwrote an mbarrier in use; else none.
static Reason overwritten_by(const Flight& flight) {
    for (const Mbarrier& barrier : flight.target->barriers) {
        const bool is_hit = overlaps(barrier.offset, 8, flight.shared, flight.bytes);
        if (!barrier.is_valid || !is_hit) continue;
        if (*barrier_word(*flight.target, barrier.offset) == barrier.word) continue;
        return {
            FaultKind::kCopyOverMbarrier, name_of(operation_of(flight)), flight.bytes,
            variable_at(flight.shared), barrier_at(barrier.offset)
        };
    }
    return {};
}

// Writes the bytes as the race detector sees it. Returns the number that is credited.
static uint32_t write_searched(Cluster& cluster, const Flight& flight, Mbarrier& barrier) {
    const Agent agent = barrier.races.agent;
    const Epoch epoch = static_cast<Epoch>(barrier.phase) + 1;
    Actor actor = flight.issued.as(agent, epoch, operation_of(flight));
    actor.pattern = pattern_of(flight);
    if (flight.map_address) {
        cluster.detector->read_map(flight.issued, agent, epoch, flight.map_address, kMapBytes);
    }
    if (flight.kind == Flight::Kind::kPush) read_push(cluster, flight, actor);
    CopyObserver observer(cluster, flight.target->rank, &actor, &actor);
    const uint32_t bytes = write_flight(flight, observer);
    barrier.races.gathered.seen.raise(agent, epoch);
    barrier.races.gathered.issued_after.raise(agent, epoch);
    return bytes;
}

static uint32_t write_unsearched(Cluster& cluster, const Flight& flight) {
    CopyObserver observer(cluster, flight.target->rank, nullptr, nullptr);
    return write_flight(flight, observer);
}

// Credits the bytes to the barrier. Returns the reason of a fault, or nothing.
static Reason credit(Cluster& cluster, const Flight& flight, Mbarrier& barrier, uint32_t bytes) {
    if (SyncOrder* order = cluster.launch.order) {
        order->land(key_of(cluster, *flight.credited, barrier.offset), *flight.synced);
    }
    barrier.bytes -= bytes;
    barrier.landed = barrier.phase + 1;
    barrier.history.landings.push_back({flight.shared, flight.issuer, flight.site});
    Reason reason = overflow_of(barrier);
    if (reason) return reason;
    record_landing(cluster, flight, barrier, bytes);
    reason = overwritten_by(flight);
    if (!reason) complete_phase(cluster, *flight.credited, barrier);
    return reason;
}

void land(Cluster& cluster, const Flight& flight) {
    Reason reason;
    try {
        Mbarrier* barrier = find_barrier(*flight.credited, flight.barrier, reason);
        if (barrier && flight.kind == Flight::Kind::kArrival) {
            land_thread_copies(*flight.issuer, flight.epoch);
            return arrive_for_copies(cluster, flight, *barrier);
        }
        if (barrier) {
            if (flight.phase < barrier->phase) {
                barrier->history.late.push_back({flight.issued.order, flight.phase, flight.bytes});
            }
            const uint32_t bytes = cluster.detector ? write_searched(cluster, flight, *barrier)
                                                    : write_unsearched(cluster, flight);
            reason = credit(cluster, flight, *barrier, bytes);
        }
        if (reason) report_fault(*flight.issuer, reason, flight.site);
    } catch (const Fault& fault) {
        const Mention operation = name_of(operation_of(flight));
        const Reason reason(
            FaultKind::kOfLoad, operation, variable_at(flight.shared), fault.reason
        );
        report_fault(*flight.issuer, reason, flight.site);
    } catch (const WrongSource& source) {
        const Reason reason = reason_of_source(*flight.issuer, source, operation_of(flight));
        report_fault(*flight.issuer, reason, flight.site);
    }
}

}  // namespace tmaasync_emulate
