#include "copies/loads.hpp"

#include "barriers/init_order.hpp"
#include "barriers/mbarrier.hpp"
#include "copies/maps.hpp"
#include "copies/observer.hpp"
#include "memory/grids.hpp"
#include "schedule/events.hpp"
#include "state/names.hpp"
#include "tma/bulk.hpp"

namespace tmaasync_emulate {

Flight flight_of(Fiber& fiber, const Box& box) {
    Flight flight = copy_of<Flight>(fiber, box);
    if (!box.offsets) return flight;
    flight.kind = Flight::Kind::kIm2col;
    std::copy_n(box.offsets, box.rank - 2, flight.offsets.begin());
    return flight;
}

void prefetch(Fiber& fiber, const Flight& flight) {
    Detector* detector = fiber.cluster->detector.get();
    if (!detector || !flight.map_address) return;
    const Issued issued = detector->issue(fiber.number, fiber.site);
    detector->peek_at_map(issued, flight.map_address, kMapBytes);
    stop_if_race(fiber);
}

static void record_load(
    Fiber& fiber, Flight& flight, const Cta& owner, const Mbarrier& barrier, uint32_t shared
) {
    Event event = on_barrier(EventKind::kLoadIssued, owner, barrier);
    event.shared = shared;
    event.bytes = flight.bytes;
    event.sequence = flight.sequence = new_sequence(*fiber.cluster);
    record(fiber, event);
}

// The accesses of a counted load, complete when the barrier's current phase completes.
static Access landing_of(const Fiber& fiber, const Mbarrier& barrier) {
    return {
        .agent = barrier.races.agent,
        .epoch = static_cast<Epoch>(barrier.phase) + 1,
        .thread = fiber.number,
        .site = fiber.site
    };
}

static void check_load(Fiber& fiber, const Flight& flight) {
    if (flight.kind == Flight::Kind::kTiled || flight.kind == Flight::Kind::kIm2col) {
        check_swizzle_alignment(fiber, flight.map, flight.shared);
        check_grids_awaited(fiber, flight.map.address);
    }
    if (flight.kind == Flight::Kind::kBulk) {
        check_grids_awaited(fiber, reinterpret_cast<uintptr_t>(flight.global));
    }
}

void issue_load(Fiber& fiber, Flight flight, uint32_t shared, uint32_t barrier) {
    const Place place = locate(fiber, shared);
    const Place credited = locate(fiber, barrier);
    if (place.cta != credited.cta) {
        fail(fiber, FaultKind::kLoadCreditsOtherCta);
    }
    flight.target = place.cta;
    flight.shared = place.offset;
    check_load(fiber, flight);
    flight.barrier = credited.offset;
    flight.issuer = &fiber;
    flight.site = fiber.site;
    Reason reason;
    Mbarrier* counted = find_barrier(*credited.cta, credited.offset, reason);
    if (!counted) fail(fiber, reason);
    const ExpectedPhase& expected = fiber.past.expected;
    const bool is_expected = expected.cta == credited.cta && expected.barrier == credited.offset;
    flight.phase = is_expected ? expected.phase : counted->phase;
    if (Detector* detector = fiber.cluster->detector.get()) {
        check_init_is_fenced(fiber, *credited.cta, *counted);
        if (place.cta != fiber.cta) {
            note_remote(place.cta->races.remote, landing_of(fiber, *counted));
        }
        flight.issued = detector->issue(fiber.number, fiber.site);
    }
    if (flight.kind == Flight::Kind::kBulk) {
        or_fail(fiber, [&] { detail::check_bulk_size(FaultKind::kBulkLoad, flight.bytes); });
    }
    check_inside_shared(fiber, flight.shared, flight.bytes, copy_by(operation_of(flight)));
    // A multicast has its sequence number already.
    if (flight.sequence == kNothing) {
        record_load(fiber, flight, *credited.cta, *counted, flight.shared);
    }
    fiber.cluster->flights.push_back(std::move(flight));
    let_land(fiber);
}

// Records one event for all targets, with the phase of the issuer's own barrier.
static void record_multicast(Fiber& fiber, Flight& flight, uint32_t shared, uint32_t barrier) {
    if (!fiber.cluster->recorder) return;
    const uint32_t offset = barrier & kOffsetMask;
    Reason reason;
    const Mbarrier* own = find_barrier(*fiber.cta, offset, reason);
    record_load(
        fiber, flight, *fiber.cta, own ? *own : Mbarrier{.offset = offset}, shared & kOffsetMask
    );
}

void issue_multicast(
    Fiber& fiber, Flight flight, uint32_t shared, uint32_t barrier, uint32_t cta_mask
) {
    const auto ctas = static_cast<uint32_t>(fiber.cluster->ctas.size());
    if (cta_mask == 0 || cta_mask >> ctas) {
        fail(fiber, {FaultKind::kMulticastMask, cta_mask, ctas});
    }
    record_multicast(fiber, flight, shared, barrier);
    for (uint32_t rank = 0; rank < ctas; ++rank) {
        if (!(cta_mask >> rank & 1)) continue;
        const uint32_t in_rank = rank << kRankShift;
        issue_load(
            fiber, flight, (shared & kOffsetMask) | in_rank, (barrier & kOffsetMask) | in_rank
        );
    }
}

void issue_push(Fiber& fiber, Flight flight, uint32_t from, uint32_t to, uint32_t barrier) {
    const Place source = resolve(fiber, from);
    if (source.cta != fiber.cta) {
        fail(fiber, FaultKind::kPushOfOtherCta);
    }
    check_inside_shared(fiber, source.offset, flight.bytes, FaultKind::kPushSource);
    or_fail(fiber, [&] { check_push(source.offset, to & kOffsetMask, flight.bytes); });
    flight.source = source.cta;
    flight.source_offset = source.offset;
    issue_load(fiber, std::move(flight), to, barrier);
}

}  // namespace tmaasync_emulate
