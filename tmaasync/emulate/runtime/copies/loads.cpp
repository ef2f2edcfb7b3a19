#include "copies/loads.hpp"

#include "barriers/init_order.hpp"
#include "barriers/mbarrier.hpp"
#include "copies/maps.hpp"
#include "copies/observer.hpp"
#include "memory/grids.hpp"
#include "schedule/events.hpp"
#include "state/names.hpp"
#include "tma/bulk.hpp"
#include "tma/im2col.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

// Adds the rows of the halos.
static void widen(Fiber& fiber, Flight& flight) {
    or_fail(fiber, [&] {
        detail::check_kind(flight.map, kind_of(flight.mode));
        flight.map = with_halo(flight.map, flight.offsets.data());
    });
    flight.bytes = flight.map.rows * flight.map.row_pitch_bytes;
}

Flight flight_of(Fiber& fiber, const Box& box) {
    Flight flight = copy_of<Flight>(fiber, box);
    if (!box.offsets) return flight;
    flight.kind = Flight::Kind::kIm2col;
    flight.mode = box.mode;
    const bool is_wide = box.mode != BoxMode::kIm2col;
    std::copy_n(box.offsets, is_wide ? 2 : box.rank - 2, flight.offsets.begin());
    if (is_wide) widen(fiber, flight);
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

static void check_credited(Fiber& fiber, const Cta& target, const Cta& credited, uint32_t group) {
    if (target.rank / group == credited.rank / group) return;
    fail(fiber, group == 1 ? FaultKind::kLoadCreditsOtherCta : FaultKind::kLoadCreditsOtherPair);
}

// Notes the CTAs, besides the issuer's own, that a load writes to or credits.
static void note_targets(const Fiber& fiber, const Flight& flight, const Mbarrier& barrier) {
    for (Cta* cta : {flight.target, flight.credited}) {
        if (cta != fiber.cta) note_remote(cta->races.remote, landing_of(fiber, barrier));
    }
}

void issue_load(Fiber& fiber, Flight flight, uint32_t shared, Counting counting) {
    const Place place = locate(fiber, shared);
    const Place credited = locate(fiber, counting.barrier);
    check_credited(fiber, *place.cta, *credited.cta, counting.cta_group);
    flight.target = place.cta;
    flight.shared = place.offset;
    check_load(fiber, flight);
    flight.credited = credited.cta;
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
        note_targets(fiber, flight, *counted);
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
    if (SyncOrder* order = fiber.cluster->launch.order) flight.synced = order->issue(fiber);
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

// PTX ISA: with a group of 2, a multicast signals all even CTAs of the pairs, or all odd ones, like
// the CTA of the barrier that the instruction names.
static uint32_t credited_rank(uint32_t target, Counting counting) {
    const uint32_t group = counting.cta_group;
    return target / group * group + (counting.barrier >> kRankShift) % group;
}

void issue_multicast(
    Fiber& fiber, Flight flight, uint32_t shared, Counting counting, uint32_t cta_mask
) {
    const auto ctas = static_cast<uint32_t>(fiber.cluster->ctas.size());
    if (cta_mask == 0 || cta_mask >> ctas) {
        fail(fiber, {FaultKind::kMulticastMask, cta_mask, ctas});
    }
    record_multicast(fiber, flight, shared, counting.barrier);
    for (uint32_t rank = 0; rank < ctas; ++rank) {
        if (!(cta_mask >> rank & 1)) continue;
        const uint32_t credited = credited_rank(rank, counting) << kRankShift;
        issue_load(
            fiber, flight, (shared & kOffsetMask) | rank << kRankShift,
            {(counting.barrier & kOffsetMask) | credited, counting.cta_group}
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
    issue_load(fiber, std::move(flight), to, {barrier});
}

}  // namespace tmaasync_emulate
