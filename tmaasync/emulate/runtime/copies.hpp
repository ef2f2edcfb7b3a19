// Asynchronous copies: loads, which land some time after their issue, and stores in bulk groups.
#pragma once

#include <algorithm>
#include <cstring>
#include "thread_copies.hpp"
#include "unwritten.hpp"

namespace tmaasync_emulate {

// Turns a fault of the TMA engine into the end of the launch, once the exception is handled.
template <typename Act>
void or_fail(Fiber& fiber, Act act) {
    try {
        return act();
    } catch (const Fault& fault) {
        fiber.cluster->report_fault(fiber, fault.reason, fault.site ? fault.site : fiber.site);
    }
    fiber.cluster->fail(fiber, "");
}

// Prefix of an engine's fault that names the tile: "a TMA load to tiles[1]: ".
inline Words described(const Flight& flight) {
    return name_of(flight) + " to " + place_at(flight.shared) + ": ";
}

// --- loads ---------------------------------------------------------------------------------------

// Copies from one CTA's shared memory to another's.
inline uint32_t write_push(const Flight& flight, CopyObserver& target) {
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
inline void read_push(Cluster& cluster, const Flight& flight, const Actor& writer) {
    Actor reader = writer;
    reader.operation = Operation::kTmaPush;
    CopyObserver source(cluster, flight.source->rank, &reader, nullptr);
    source.shared(flight.source_offset, flight.bytes, false);
    flight.source->remote.push_back(
        {.agent = reader.agent,
         .epoch = reader.epoch,
         .thread = reader.thread,
         .site = reader.site,
         .operation = reader.operation}
    );
}

inline Operation operation_of(const Flight& flight) {
    if (flight.kind != Flight::Kind::kPush) return Operation::kTmaLoad;
    return flight.reduction ? Operation::kTmaPushReduce : Operation::kTmaPush;
}

// The swizzle of a load plus one; 0 without a swizzled map. wgmma must read with the same swizzle.
inline uint8_t pattern_of(const Flight& flight) {
    const bool has_map =
        flight.kind == Flight::Kind::kTiled || flight.kind == Flight::Kind::kIm2col;
    if (!has_map || flight.map.interleave != Interleave::kNone) return 0;
    return 1 + static_cast<uint8_t>(flight.map.swizzle);
}

// Writes the bytes and returns the number that is credited to the barrier.
inline uint32_t write_flight(const Flight& flight, CopyObserver& observer) {
    uint8_t* window = flight.target->window;
    switch (flight.kind) {
        case Flight::Kind::kPush:
            return write_push(flight, observer);
        case Flight::Kind::kTiled:
            return tiled_load(flight.map, flight.at.data(), window, flight.shared, observer);
        case Flight::Kind::kIm2col:
            return im2col_load(
                flight.map, flight.at.data(), flight.offsets.data(), window, flight.shared, observer
            );
        case Flight::Kind::kBulk:
            return bulk_load(flight.global, flight.bytes, window, flight.shared, observer);
        case Flight::Kind::kArrival:
            break;
    }
    __builtin_unreachable();
}

inline void record_landing(
    Cluster& cluster, const Flight& flight, const Mbarrier& barrier, uint32_t bytes
) {
    Event event = on_barrier(EventKind::kLoadLanded, *flight.target, barrier);
    event.shared = flight.shared;
    event.bytes = bytes;
    event.sequence = flight.sequence;
    cluster.record(*flight.target, event);
}

// The reason of the fault if the copy overwrote an mbarrier in use; else empty.
inline Words overwritten_by(const Flight& flight) {
    for (const Mbarrier& barrier : flight.target->barriers) {
        const bool is_hit = overlaps(barrier.offset, 8, flight.shared, flight.bytes);
        if (!barrier.is_valid || !is_hit) continue;
        if (*barrier_word(*flight.target, barrier.offset) == barrier.word) continue;
        return name_of(flight) + " of " + decimal(flight.bytes) + " bytes to " +
               place_at(flight.shared) + " overwrites " + barrier_name(barrier) +
               ", which is in use. Give the tile as many bytes as its box has";
    }
    return "";
}

// Writes the bytes, then credits the barrier. Runs in the scheduler, so a fault is reported for the
// issuer but does not stop it.
void Cluster::land(const Flight& flight) {
    Words reason;
    try {
        Mbarrier* barrier = find_barrier(*flight.target, flight.barrier, reason);
        if (!barrier) return report_fault(*flight.issuer, reason, flight.site);
        if (flight.kind == Flight::Kind::kArrival) {
            land_thread_copies(*flight.issuer, flight.epoch);
            return arrive_for_copies(*this, flight, *barrier);
        }
        const Epoch epoch = static_cast<Epoch>(barrier->phase) + 1;
        Actor actor = flight.issued.as(barrier->agent, epoch, operation_of(flight));
        actor.pattern = pattern_of(flight);
        const Actor* seen = detector() ? &actor : nullptr;
        if (seen && flight.map_address) {
            detector_->read_map(
                flight.issued, barrier->agent, epoch, flight.map_address, kMapBytes
            );
        }
        if (seen && flight.kind == Flight::Kind::kPush) read_push(*this, flight, actor);
        CopyObserver observer(*this, flight.target->rank, seen, seen);
        const uint32_t bytes = write_flight(flight, observer);
        if (detector()) {
            barrier->gathered.seen.raise(barrier->agent, epoch);
            barrier->gathered.issued_after.raise(barrier->agent, epoch);
        }
        barrier->bytes -= bytes;
        barrier->landed = barrier->phase + 1;
        barrier->landings.push_back({flight.shared, flight.issuer, flight.site});
        reason = overflow_of(*barrier);
        if (!reason.is_empty()) return report_fault(*flight.issuer, reason, flight.site);
        record_landing(*this, flight, *barrier, bytes);
        reason = overwritten_by(flight);
        if (!reason.is_empty()) return report_fault(*flight.issuer, reason, flight.site);
        complete_phase(*this, *flight.target, *barrier);
    } catch (const Fault& fault) {
        report_fault(*flight.issuer, described(flight) + fault.reason, flight.site);
    } catch (const UnwrittenSource& source) {
        const Words what = name_of(flight);
        const Fault fault = fault_of_unwritten(*flight.issuer, source, what, flight.site);
        report_fault(*flight.issuer, fault.reason, fault.site);
    }
}

// TMA reads maps in parameters, constant memory and global memory only.
inline void check_map_memory(Fiber& fiber, uintptr_t map) {
    const bool is_on_stack = (map ^ stack_pointer()) < kStackBytes;
    const bool is_shared = map - fiber.cluster->windows() < fiber.cluster->windows_bytes();
    if (!is_shared && !(is_on_stack && map < fiber.parameters)) return;
    fiber.cluster->fail(
        fiber, Words("the tensor map lies in ") + (is_shared ? "shared" : "local") +
                   " memory, where TMA cannot read it" +
                   (is_shared ? ". Copy it to global memory, with tensormap_cp_fence_release()"
                              : ": it is a copy in a variable, or an argument passed by value. Use "
                                "the const __grid_constant__ parameter itself, by reference")
    );
}

inline TensorMapView decode_for(Fiber& fiber, const void* map) {
    check_map_memory(fiber, reinterpret_cast<uintptr_t>(map));
    try {
        return decode(map);
    } catch (const Fault& fault) {
        fiber.cluster->fail(fiber, fault.reason);
    }
}

// TMA swizzles by the address, and readers swizzle by the position in the tile. So a tile must
// start where the pattern does. Boxes smaller than the pattern share one.
inline void check_swizzle_alignment(Fiber& fiber, const TensorMapView& map, uint32_t shared) {
    if (map.swizzle == Swizzle::kNone || map.interleave != Interleave::kNone) return;
    const uint32_t span = kUnitBytes << static_cast<int>(map.swizzle);
    const uint32_t box = map.rows * map.row_pitch_bytes;
    const uint32_t pattern = std::min(8 * span, box & -box);
    if (shared % pattern == 0) return;
    fiber.cluster->fail(
        fiber, "a tile with a swizzle of " + decimal(span) + " bytes lies at " + shared_at(shared) +
                   "; it must lie at a multiple of " + decimal(pattern) +
                   ", where the pattern begins. Declare it alignas(" + decimal(8 * span) +
                   ") in shared memory"
    );
}

// The map's present state and the box's start. Faults if the map has another rank.
template <typename Copy>
Copy copy_of(Fiber& fiber, const Box& box) {
    Copy copy{};
    copy.map = decode_for(fiber, box.map);
    if (static_cast<int>(copy.map.rank) != box.rank) {
        fiber.cluster->fail(
            fiber, "the instruction is of " + decimal(box.rank) +
                       " dimensions, and its tensor map has " + decimal(copy.map.rank)
        );
    }
    std::copy_n(box.at, box.rank, copy.at.begin());
    const auto address = reinterpret_cast<uintptr_t>(box.map);
    const bool is_parameter = (address ^ stack_pointer()) < kStackBytes;
    copy.map_address = is_parameter ? 0 : address;
    copy.bytes = copy.map.rows * copy.map.row_pitch_bytes;
    return copy;
}

inline Flight flight_of(Fiber& fiber, const Box& box) {
    Flight flight = copy_of<Flight>(fiber, box);
    if (!box.offsets) return flight;
    flight.kind = Flight::Kind::kIm2col;
    std::copy_n(box.offsets, box.rank - 2, flight.offsets.begin());
    return flight;
}

inline void prefetch(Fiber& fiber, const Flight& flight) {
    Detector* detector = fiber.cluster->detector();
    if (!detector || !flight.map_address) return;
    const Issued issued = detector->issue(fiber.number, fiber.site);
    detector->peek_at_map(issued, flight.map_address, kMapBytes);
    fiber.cluster->stop_if_race(fiber);
}

inline void record_load(
    Fiber& fiber, Flight& flight, const Cta& owner, const Mbarrier& barrier, uint32_t shared
) {
    Event event = on_barrier(EventKind::kLoadIssued, owner, barrier);
    event.shared = shared;
    event.bytes = flight.bytes;
    event.sequence = flight.sequence = fiber.cluster->new_sequence();
    fiber.cluster->record(fiber, event);
}

// The accesses of a counted load, complete when the barrier's current phase completes.
inline Access landing_of(const Fiber& fiber, const Mbarrier& barrier) {
    return {
        .agent = barrier.agent,
        .epoch = static_cast<Epoch>(barrier.phase) + 1,
        .thread = fiber.number,
        .site = fiber.site
    };
}

// Issues a load into this CTA, or into another by a mapa address. The barrier lies there too.
inline void issue_load(Fiber& fiber, Flight flight, uint32_t shared, uint32_t barrier) {
    const Place place = locate(fiber, shared);
    const Place credited = locate(fiber, barrier);
    if (place.cta != credited.cta) {
        fiber.cluster->fail(
            fiber,
            "a TMA load writes into one CTA and credits an mbarrier of another; both lie in "
            "the same one"
        );
    }
    if (flight.kind == Flight::Kind::kTiled || flight.kind == Flight::Kind::kIm2col) {
        check_swizzle_alignment(fiber, flight.map, place.offset);
        check_grids_awaited(fiber, flight.map.address);
    }
    if (flight.kind == Flight::Kind::kBulk) {
        check_grids_awaited(fiber, reinterpret_cast<uintptr_t>(flight.global));
    }
    flight.target = place.cta;
    flight.shared = place.offset;
    flight.barrier = credited.offset;
    flight.issuer = &fiber;
    flight.site = fiber.site;
    Words reason;
    Mbarrier* counted = find_barrier(*credited.cta, credited.offset, reason);
    if (!counted) fiber.cluster->fail(fiber, reason);
    if (Detector* detector = fiber.cluster->detector()) {
        check_init_is_fenced(fiber, *credited.cta, *counted);
        if (place.cta != fiber.cta) note_remote(place.cta->remote, landing_of(fiber, *counted));
        flight.issued = detector->issue(fiber.number, fiber.site);
    }
    if (flight.kind == Flight::Kind::kBulk) {
        or_fail(fiber, [&] { detail::check_bulk_size("a bulk load", flight.bytes); });
    }
    check_inside_shared(fiber, flight.shared, flight.bytes, name_of(flight));
    // A multicast has its sequence number already.
    if (flight.sequence == kNothing) {
        record_load(fiber, flight, *credited.cta, *counted, flight.shared);
    }
    fiber.cluster->flights().push_back(std::move(flight));
    fiber.cluster->let_land(fiber);
}

// Records one event for all targets, with the phase of the issuer's own barrier.
inline void record_multicast(Fiber& fiber, Flight& flight, uint32_t shared, uint32_t barrier) {
    if (!fiber.cluster->recorder()) return;
    const uint32_t offset = barrier & kOffsetMask;
    Words reason;
    const Mbarrier* own = find_barrier(*fiber.cta, offset, reason);
    record_load(
        fiber, flight, *fiber.cta, own ? *own : Mbarrier{.offset = offset}, shared & kOffsetMask
    );
}

// Issues a load to the same offset in every CTA of the mask.
inline void issue_multicast(
    Fiber& fiber, Flight flight, uint32_t shared, uint32_t barrier, uint32_t cta_mask
) {
    const auto ctas = static_cast<uint32_t>(fiber.cluster->ctas().size());
    if (cta_mask == 0 || cta_mask >> ctas) {
        fiber.cluster->fail(
            fiber, "a multicast names the CTAs of mask " + decimal(cta_mask) +
                       "; the cluster has " + decimal(ctas)
        );
    }
    record_multicast(fiber, flight, shared, barrier);
    for (uint32_t rank = 0; rank < ctas; ++rank) {
        if (!(cta_mask >> rank & 1)) continue;
        const uint32_t in_rank = (rank + 1) << kRankShift;
        issue_load(
            fiber, flight, (shared & kOffsetMask) | in_rank, (barrier & kOffsetMask) | in_rank
        );
    }
}

// Issues a copy from this CTA's shared memory to another CTA's, or to its own.
inline void issue_push(Fiber& fiber, Flight flight, uint32_t from, uint32_t to, uint32_t barrier) {
    const Place source = resolve(fiber, from);
    if (source.cta != fiber.cta) {
        fiber.cluster->fail(
            fiber,
            "a copy between shared memories reads another CTA's; it must read its "
            "own. Let the other one push"
        );
    }
    check_inside_shared(fiber, source.offset, flight.bytes, "a copy out of shared memory");
    or_fail(fiber, [&] { check_push(source.offset, to & kOffsetMask, flight.bytes); });
    flight.source = source.cta;
    flight.source_offset = source.offset;
    issue_load(fiber, std::move(flight), to, barrier);
}

// --- stores --------------------------------------------------------------------------------------

inline bool is_reduction(const Store& store) {
    return store.kind == Store::Kind::kReduce || store.kind == Store::Kind::kBulkReduce;
}

inline Words name_of(const Store& store) {
    return is_reduction(store) ? "TMA reduction" : "TMA store";
}

inline void write_observed(Fiber& fiber, const Store& store, const uint8_t* window) {
    const Operation operation = is_reduction(store) ? Operation::kTmaReduce : Operation::kTmaStore;
    const Actor reader = store.issued.as(fiber.bulk_reads, store.epoch, operation);
    const Actor writer = store.issued.as(fiber.bulk_writes, store.epoch, operation);
    const bool is_seen = fiber.cluster->detector() != nullptr;
    CopyObserver observer(
        *fiber.cluster, fiber.cta->rank, is_seen ? &reader : nullptr, is_seen ? &writer : nullptr
    );
    switch (store.kind) {
        case Store::Kind::kTiled:
            return tiled_store(store.map, store.at.data(), window, store.shared, observer);
        case Store::Kind::kReduce:
            return tiled_reduce(
                store.op, store.map, store.at.data(), window, store.shared, observer
            );
        case Store::Kind::kBulk:
            bulk_store(store.global, store.bytes, window, store.shared, observer);
            return;
        case Store::Kind::kBulkReduce:
            bulk_reduce(
                store.op, store.type, store.global, store.bytes, window, store.shared, observer
            );
    }
}

// Writes a store's bytes. A fault names the line that issued the store.
inline void write_from(Fiber& fiber, const Store& store, const uint8_t* window) {
    try {
        write_observed(fiber, store, window);
    } catch (Fault& fault) {
        fault.site = store.site;
        fault.reason =
            "a " + name_of(store) + " from " + place_at(store.shared) + ": " + fault.reason;
        throw;
    } catch (const UnwrittenSource& source) {
        throw fault_of_unwritten(fiber, source, "a " + name_of(store), store.site);
    }
}

inline Event on_store(EventKind kind, const Store& store) {
    return {.shared = store.shared, .bytes = store.bytes, .kind = kind, .sequence = store.sequence};
}

inline void record_store(Fiber& fiber, EventKind kind, const Store& store) {
    fiber.cluster->record(*fiber.cta, on_store(kind, store));
}

// Reads the bytes from shared memory. They may reach global memory later.
inline void read_store(Fiber& fiber, Store& store) {
    if (store.is_read) return;
    store.is_read = true;
    const uint8_t* window = fiber.cta->window;
    // The detector finds the races of a late write without one.
    if (!fiber.cluster->detector() && fiber.cluster->choices().writes_late()) {
        // Swizzled units may lie anywhere up to the end of the last pattern.
        store.snapshot.assign(
            window + store.shared, window + store.shared + (store.bytes + 1023) / 1024 * 1024
        );
        record_store(fiber, EventKind::kStoreRead, store);
        return;
    }
    write_from(fiber, store, window);
    store.is_written = true;
    record_store(fiber, EventKind::kStoreRead, store);
    record_store(fiber, EventKind::kStoreWritten, store);
}

inline void finish_store(Fiber& fiber, Store& store) {
    read_store(fiber, store);
    if (store.is_written) return;
    // The snapshot is swizzled by the address that it had in the window.
    std::vector<uint8_t> window(store.shared + store.snapshot.size());
    std::memcpy(window.data() + store.shared, store.snapshot.data(), store.snapshot.size());
    write_from(fiber, store, window.data());
    store.is_written = true;
    record_store(fiber, EventKind::kStoreWritten, store);
}

template <typename Act>
void for_each_store(Fiber& fiber, std::size_t pending, Act act) {
    fiber.cluster->maybe_yield(fiber);
    or_fail(fiber, [&] {
        for (std::size_t index = 0; index + pending < fiber.groups.size(); ++index) {
            for (Store& store : fiber.groups[index]) {
                store.is_awaited = true;
                act(fiber, store);
            }
        }
    });
    if (fiber.cluster->detector()) fiber.cluster->stop_if_race(fiber);
}

inline void finish_bulk(Fiber& fiber, Agent agent, std::size_t pending) {
    Detector* detector = fiber.cluster->detector();
    if (!detector || agent == kNoAgent || fiber.bulk_commits <= pending) return;
    detector->finish(fiber.number, agent, fiber.bulk_commits - static_cast<Epoch>(pending));
}

inline void finish_written(Fiber& fiber, std::size_t pending) {
    Detector* detector = fiber.cluster->detector();
    if (!detector || fiber.bulk_writes == kNoAgent || fiber.bulk_commits <= pending) return;
    const Epoch epoch = fiber.bulk_commits - static_cast<Epoch>(pending);
    detector->finish_stores(fiber.number, fiber.bulk_writes, epoch);
}

inline void wait_for_reads(Fiber& fiber, std::size_t pending) {
    for_each_store(fiber, pending, &read_store);
    finish_bulk(fiber, fiber.bulk_reads, pending);
    while (!fiber.groups.empty()) {
        for (const Store& store : fiber.groups.front()) {
            if (!store.is_written || !store.is_awaited) return;
        }
        fiber.groups.pop_front();
    }
}

inline void wait_for_writes(Fiber& fiber, std::size_t pending) {
    for_each_store(fiber, pending, &finish_store);
    finish_bulk(fiber, fiber.bulk_reads, pending);
    finish_written(fiber, pending);
    while (fiber.groups.size() > pending) fiber.groups.pop_front();
}

inline void issue_store(Fiber& fiber, Store store, uint32_t shared) {
    check_inside_shared(fiber, shared, store.bytes, "a " + name_of(store));
    if (store.kind == Store::Kind::kBulk) {
        or_fail(fiber, [&] { detail::check_bulk_size("a bulk store", store.bytes); });
    }
    const bool has_map = store.kind == Store::Kind::kTiled || store.kind == Store::Kind::kReduce;
    if (has_map) check_swizzle_alignment(fiber, store.map, shared);
    const auto target = has_map ? store.map.address : reinterpret_cast<uintptr_t>(store.global);
    check_grids_awaited(fiber, target);
    fiber.cluster->launch().note_written(target);
    store.shared = shared;
    store.site = fiber.site;
    if (Detector* detector = fiber.cluster->detector()) {
        bulk_agent(*fiber.cluster, fiber.bulk_reads);
        bulk_agent(*fiber.cluster, fiber.bulk_writes);
        store.epoch = fiber.bulk_commits + 1;
        store.issued = detector->issue(fiber.number, fiber.site);
        if (store.map_address) {
            detector->read_map(
                store.issued, fiber.bulk_reads, store.epoch, store.map_address, kMapBytes
            );
            fiber.cluster->stop_if_race(fiber);
        }
    }
    store.sequence = fiber.cluster->new_sequence();
    fiber.cluster->record(fiber, on_store(EventKind::kStoreIssued, store));
    fiber.open_group.push_back(std::move(store));
    if (!fiber.cluster->choices().reads_at_once()) return;
    or_fail(fiber, [&] { read_store(fiber, fiber.open_group.back()); });
}

inline void commit_stores(Fiber& fiber) {
    for (const Store& store : fiber.open_group) {
        fiber.cluster->record(fiber, on_store(EventKind::kStoreCommitted, store));
    }
    ++fiber.bulk_commits;
    fiber.groups.push_back(std::move(fiber.open_group));
    fiber.open_group.clear();
}

// --- waits, as a kernel calls them ---------------------------------------------------------------

// Sequence number of the newest store that this wait covers; kNothing if there is none.
inline uint32_t newest_awaited(const Fiber& fiber, std::size_t pending, bool are_writes) {
    for (std::size_t end = fiber.groups.size(); end > pending; --end) {
        const auto& group = fiber.groups[end - 1 - pending];
        for (auto store = group.rbegin(); store != group.rend(); ++store) {
            if (are_writes || !store->is_awaited) return store->sequence;
        }
    }
    return kNothing;
}

inline void wait_for_group(Fiber& fiber, std::size_t pending, bool are_writes) {
    const uint32_t newest = newest_awaited(fiber, pending, are_writes);
    const auto record = [&](EventKind kind) {
        if (newest != kNothing) fiber.cluster->record(fiber, {.kind = kind, .sequence = newest});
    };
    record(EventKind::kWaitBegin);
    are_writes ? wait_for_writes(fiber, pending) : wait_for_reads(fiber, pending);
    record(EventKind::kWaitEnd);
}

// --- the end of a thread -------------------------------------------------------------------------

// Keeps the unfinished writes of a thread that ends: they may outlive it.
void Cluster::leave_stores(Fiber& fiber) {
    for (auto& group : fiber.groups) {
        for (Store& store : group) {
            if (!store.is_written) late_stores_.push_back({&fiber, std::move(store)});
        }
    }
    fiber.groups.clear();
}

void Cluster::write_late_stores() {
    for (LateStore& late : late_stores_) {
        running_ = late.issuer;
        try {
            finish_store(*late.issuer, late.store);
        } catch (const Fault& fault) {
            report_fault(*late.issuer, fault.reason, fault.site);
        }
    }
}

// Reports, at a thread's end, the first store that it has not waited for.
[[noreturn]] inline void fail_at_store(Fiber& fiber, const Store& store, bool is_committed) {
    fiber.cluster->report_fault(
        fiber,
        "the thread ends while TMA still reads its stores from shared memory, one of them from " +
            place_at(store.shared) + ". " +
            (is_committed ? "Call wait_group_read<0>() first"
                          : "Commit them with commit_group() and call wait_group_read<0>() first"),
        store.site
    );
    fiber.cluster->fail(fiber, "");
}

// Called at the end of a thread.
inline void finish_stores(Fiber& fiber) {
    for (const auto& group : fiber.groups) {
        for (const Store& store : group) {
            if (!store.is_awaited) fail_at_store(fiber, store, true);
        }
    }
    if (!fiber.open_group.empty()) fail_at_store(fiber, fiber.open_group.front(), false);
    if (fiber.cluster->choices().is_adversarial()) return fiber.cluster->leave_stores(fiber);
    // Writes that no thread has waited for happen here.
    for_each_store(fiber, 0, &finish_store);
    fiber.groups.clear();
}

}  // namespace tmaasync_emulate
