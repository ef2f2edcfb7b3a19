#include "copies/stores.hpp"

#include "copies/maps.hpp"
#include "copies/observer.hpp"
#include "memory/accesses.hpp"
#include "memory/addresses.hpp"
#include "memory/grids.hpp"
#include "schedule/events.hpp"
#include "state/names.hpp"
#include "tma/bulk.hpp"
#include "tma/tiled.hpp"

namespace tmaasync_emulate {

static bool is_reduction(const Store& store) {
    return store.kind == Store::Kind::kReduce || store.kind == Store::Kind::kBulkReduce;
}

static Operation operation_of(const Store& store) {
    return is_reduction(store) ? Operation::kTmaReduce : Operation::kTmaStore;
}

static void write_observed(Fiber& fiber, const Store& store, const uint8_t* window) {
    const Operation operation = operation_of(store);
    const Actor reader = store.issued.as(fiber.races.bulk_reads, store.epoch, operation);
    const Actor writer = store.issued.as(fiber.races.bulk_writes, store.epoch, operation);
    const bool is_seen = fiber.cluster->detector != nullptr;
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
            if (store.byte_mask == 0xffff) {
                bulk_store(store.global, store.bytes, window, store.shared, observer);
            } else {
                bulk_store_masked(
                    store.global, store.bytes, store.byte_mask, window, store.shared, observer
                );
            }
            return;
        case Store::Kind::kBulkReduce:
            bulk_reduce(
                store.op, store.type, store.global, store.bytes, window, store.shared, observer
            );
    }
}

// Writes a store's bytes. A fault names the line that issued the store.
static void write_from(Fiber& fiber, const Store& store, const uint8_t* window) {
    try {
        write_observed(fiber, store, window);
    } catch (Fault& fault) {
        fault.site = store.site;
        fault.reason = {
            FaultKind::kOfStore, name_of(operation_of(store)), variable_at(store.shared),
            fault.reason
        };
        throw;
    } catch (const WrongSource& source) {
        throw Fault(reason_of_source(fiber, source, operation_of(store)), store.site);
    }
}

static Event on_store(EventKind kind, const Store& store) {
    return {.shared = store.shared, .bytes = store.bytes, .kind = kind, .sequence = store.sequence};
}

static void record_store(Fiber& fiber, EventKind kind, const Store& store) {
    record(*fiber.cluster, *fiber.cta, on_store(kind, store));
}

// Reads the bytes from shared memory. They may reach global memory later.
static void read_store(Fiber& fiber, Store& store) {
    if (store.is_read) return;
    store.is_read = true;
    const uint8_t* window = fiber.cta->window;
    // The detector finds the races of a late write without one.
    if (!fiber.cluster->detector && fiber.cluster->choices.writes_late()) {
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

static void finish_store(Fiber& fiber, Store& store) {
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
    maybe_yield(fiber);
    or_fail(fiber, [&] {
        for (std::size_t index = 0; index + pending < fiber.stores.groups.size(); ++index) {
            for (Store& store : fiber.stores.groups[index]) {
                store.is_awaited = true;
                act(fiber, store);
            }
        }
    });
    if (fiber.cluster->detector) stop_if_race(fiber);
}

static void finish_bulk(Fiber& fiber, Agent agent, std::size_t pending) {
    Detector* detector = fiber.cluster->detector.get();
    if (!detector || agent == kNoAgent || fiber.stores.commits <= pending) return;
    detector->finish(fiber.number, agent, fiber.stores.commits - static_cast<Epoch>(pending));
}

static void finish_written(Fiber& fiber, std::size_t pending) {
    Detector* detector = fiber.cluster->detector.get();
    if (!detector || fiber.races.bulk_writes == kNoAgent || fiber.stores.commits <= pending) return;
    const Epoch epoch = fiber.stores.commits - static_cast<Epoch>(pending);
    detector->finish_stores(fiber.number, fiber.races.bulk_writes, epoch);
}

static void wait_for_reads(Fiber& fiber, std::size_t pending) {
    for_each_store(fiber, pending, &read_store);
    finish_bulk(fiber, fiber.races.bulk_reads, pending);
    while (!fiber.stores.groups.empty()) {
        for (const Store& store : fiber.stores.groups.front()) {
            if (!store.is_written || !store.is_awaited) return;
        }
        fiber.stores.groups.pop_front();
    }
}

static void wait_for_writes(Fiber& fiber, std::size_t pending) {
    for_each_store(fiber, pending, &finish_store);
    finish_bulk(fiber, fiber.races.bulk_reads, pending);
    finish_written(fiber, pending);
    while (fiber.stores.groups.size() > pending) fiber.stores.groups.pop_front();
}

void issue_store(Fiber& fiber, Store store, uint32_t address) {
    const uint32_t shared = own_offset(fiber, address);
    check_inside_shared(fiber, shared, store.bytes, copy_by(operation_of(store)));
    if (store.kind == Store::Kind::kBulk) {
        or_fail(fiber, [&] { detail::check_bulk_size(FaultKind::kBulkStore, store.bytes); });
    }
    const bool has_map = store.kind == Store::Kind::kTiled || store.kind == Store::Kind::kReduce;
    if (has_map) check_swizzle_alignment(fiber, store.map, shared);
    const auto target = has_map ? store.map.address : reinterpret_cast<uintptr_t>(store.global);
    check_grids_awaited(fiber, target);
    fiber.cluster->launch.memory.note_written(target);
    store.shared = shared;
    store.site = fiber.site;
    if (Detector* detector = fiber.cluster->detector.get()) {
        bulk_agent(*fiber.cluster, fiber.races.bulk_reads);
        bulk_agent(*fiber.cluster, fiber.races.bulk_writes);
        store.epoch = fiber.stores.commits + 1;
        store.issued = detector->issue(fiber.number, fiber.site);
        if (store.map_address) {
            detector->read_map(
                store.issued, fiber.races.bulk_reads, store.epoch, store.map_address, kMapBytes
            );
            stop_if_race(fiber);
        }
    }
    store.sequence = new_sequence(*fiber.cluster);
    record(fiber, on_store(EventKind::kStoreIssued, store));
    fiber.stores.open.push_back(std::move(store));
    if (!fiber.cluster->choices.reads_at_once()) return;
    or_fail(fiber, [&] { read_store(fiber, fiber.stores.open.back()); });
}

void commit_stores(Fiber& fiber) {
    for (const Store& store : fiber.stores.open) {
        record(fiber, on_store(EventKind::kStoreCommitted, store));
    }
    ++fiber.stores.commits;
    fiber.stores.groups.push_back(std::move(fiber.stores.open));
    fiber.stores.open.clear();
}

// Sequence number of the newest store that this wait covers; kNothing if there is none.
static uint32_t newest_awaited(const Fiber& fiber, std::size_t pending, bool are_writes) {
    for (std::size_t end = fiber.stores.groups.size(); end > pending; --end) {
        const auto& group = fiber.stores.groups[end - 1 - pending];
        for (auto store = group.rbegin(); store != group.rend(); ++store) {
            if (are_writes || !store->is_awaited) return store->sequence;
        }
    }
    return kNothing;
}

void wait_for_group(Fiber& fiber, std::size_t pending, bool are_writes) {
    const uint32_t newest = newest_awaited(fiber, pending, are_writes);
    const auto note = [&](EventKind kind) {
        if (newest != kNothing) record(fiber, {.kind = kind, .sequence = newest});
    };
    note(EventKind::kWaitBegin);
    are_writes ? wait_for_writes(fiber, pending) : wait_for_reads(fiber, pending);
    note(EventKind::kWaitEnd);
}

// Keeps the unfinished writes of a thread that ends: they may outlive it.
static void leave_stores(Fiber& fiber) {
    for (auto& group : fiber.stores.groups) {
        for (Store& store : group) {
            if (!store.is_written) fiber.cluster->late_stores.push_back({&fiber, std::move(store)});
        }
    }
    fiber.stores.groups.clear();
}

void write_late_stores(Cluster& cluster) {
    for (LateStore& late : cluster.late_stores) {
        cluster.running = late.issuer;
        try {
            finish_store(*late.issuer, late.store);
        } catch (const Fault& fault) {
            report_fault(*late.issuer, fault.reason, fault.site);
        }
    }
}

// Reports, at a thread's end, a store that it has not waited for.
static void break_rule_at_store(Fiber& fiber, const Store& store, bool is_committed) {
    if (is_pardoned(fiber, FaultKind::kUnreadStores, store.site)) return;
    report_fault(
        fiber,
        {FaultKind::kUnreadStores, variable_at(store.shared),
         is_committed ? FaultKind::kAwaitStores : FaultKind::kCommitStores},
        store.site
    );
    fail(fiber, {});
}

void finish_stores(Fiber& fiber) {
    for (const auto& group : fiber.stores.groups) {
        for (const Store& store : group) {
            if (!store.is_awaited) break_rule_at_store(fiber, store, true);
        }
    }
    if (!fiber.stores.open.empty()) {
        break_rule_at_store(fiber, fiber.stores.open.front(), false);
        commit_stores(fiber);
    }
    if (fiber.cluster->choices.is_adversarial()) return leave_stores(fiber);
    // Writes that no thread has waited for happen here.
    for_each_store(fiber, 0, &finish_store);
    fiber.stores.groups.clear();
}

}  // namespace tmaasync_emulate
