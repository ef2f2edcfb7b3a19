// The functions that kernels call for asynchronous copies and tensor maps.

#include "copies/cluster_requests.hpp"
#include "copies/loads.hpp"
#include "copies/map_edits.hpp"
#include "copies/maps.hpp"
#include "copies/observer.hpp"
#include "copies/stores.hpp"
#include "copies/thread_copies.hpp"
#include "schedule/caller.hpp"
#include "tma/bulk.hpp"

namespace tmaasync_emulate {

// Measured on an H100: a bulk copy of 0 bytes does nothing, whatever its addresses are.

static BulkReduction decoded(const Reduction& given) {
    const auto code = static_cast<uint64_t>(given.type);
    return {static_cast<ReduceOp>(given.op), detail::type_of_code(code)};
}

void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
    if (bytes == 0) return;
    Flight flight{.kind = Flight::Kind::kBulk};
    flight.global = global;
    flight.bytes = bytes;
    issue_load(TMAASYNC_EMULATE_CALLER(), flight, shared, {barrier});
}

void bulk_load_multicast(
    uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier, uint32_t cta_mask
) {
    if (bytes == 0) return;
    Flight flight{.kind = Flight::Kind::kBulk};
    flight.global = global;
    flight.bytes = bytes;
    issue_multicast(TMAASYNC_EMULATE_CALLER(), flight, shared, {barrier}, cta_mask);
}

void bulk_prefetch(const void* global, uint32_t bytes) {
    if (bytes == 0) return;
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    CopyObserver observer(*fiber.cluster, fiber.cta->rank, nullptr, nullptr);
    or_fail(fiber, [&] { bulk_prefetch(global, bytes, observer); });
}

void bulk_push(
    uint32_t remote_shared,
    uint32_t shared,
    uint32_t bytes,
    uint32_t remote_barrier,
    const Reduction* reduction
) {
    if (bytes == 0) return;
    Flight flight{.kind = Flight::Kind::kPush};
    flight.bytes = bytes;
    if (reduction) flight.reduction = decoded(*reduction);
    issue_push(TMAASYNC_EMULATE_CALLER(), std::move(flight), shared, remote_shared, remote_barrier);
}

void bulk_reduce(Reduction reduction, void* global, uint32_t shared, uint32_t bytes) {
    if (bytes == 0) return;
    const BulkReduction wanted = decoded(reduction);
    Store store{.kind = Store::Kind::kBulkReduce};
    store.op = wanted.op;
    store.type = wanted.type;
    store.global = global;
    store.bytes = bytes;
    issue_store(TMAASYNC_EMULATE_CALLER(), store, shared);
}

void bulk_store(void* global, uint32_t shared, uint32_t bytes, uint32_t byte_mask) {
    if (bytes == 0) return;
    Store store{.kind = Store::Kind::kBulk};
    store.byte_mask = byte_mask;
    store.global = global;
    store.bytes = bytes;
    issue_store(TMAASYNC_EMULATE_CALLER(), store, shared);
}

void tensor_load(uint32_t shared, const Box& box, uint32_t barrier, uint32_t cta_group) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    issue_load(fiber, flight_of(fiber, box), shared, {barrier, cta_group});
}

void tensor_load_multicast(
    uint32_t shared, const Box& box, uint32_t barrier, uint32_t cta_mask, uint32_t cta_group
) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    issue_multicast(fiber, flight_of(fiber, box), shared, {barrier, cta_group}, cta_mask);
}

void try_cancel(uint32_t response, uint32_t barrier, bool is_for_all) {
    request_cluster(TMAASYNC_EMULATE_CALLER(), response, barrier, is_for_all);
}

bool is_canceled(const uint32_t* response) {
    return has_cluster(TMAASYNC_EMULATE_CALLER(), response);
}

uint3 first_ctaid(const uint32_t* response) {
    return first_cta_of(TMAASYNC_EMULATE_CALLER(), response);
}

void tensor_store(const Box& box, uint32_t shared) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    issue_store(fiber, copy_of<Store>(fiber, box), shared);
}

void tensor_reduce(int op, const Box& box, uint32_t shared) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    Store store = copy_of<Store>(fiber, box);
    store.kind = Store::Kind::kReduce;
    store.op = static_cast<ReduceOp>(op);
    issue_store(fiber, store, shared);
}

void tensor_prefetch(const Box& box) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    prefetch(fiber, copy_of<Flight>(fiber, box));
}

void check_map(const void* map) {
    decode_for(TMAASYNC_EMULATE_CALLER(), map);
}

void bulk_commit() {
    commit_stores(TMAASYNC_EMULATE_CALLER());
}

void bulk_wait(uint32_t pending) {
    wait_for_group(TMAASYNC_EMULATE_CALLER(), pending, true);
}

void bulk_wait_read(uint32_t pending) {
    wait_for_group(TMAASYNC_EMULATE_CALLER(), pending, false);
}

void thread_copy(uint32_t shared, const void* global, uint32_t bytes, uint32_t source_bytes) {
    issue_thread_copy(TMAASYNC_EMULATE_CALLER(), {shared, global, bytes, source_bytes});
}

void thread_copies_commit() {
    commit_thread_copies(TMAASYNC_EMULATE_CALLER());
}

void thread_copies_wait(uint32_t pending) {
    wait_for_thread_copies(TMAASYNC_EMULATE_CALLER(), pending);
}

void thread_copies_arrive(uint32_t barrier, bool raises) {
    arrive_after_thread_copies(TMAASYNC_EMULATE_CALLER(), barrier, raises);
}

void* map_in_shared(uint32_t shared_map) {
    return shared_map_at(TMAASYNC_EMULATE_CALLER(), shared_map);
}

void replace_in_map(void* map, MapField field, int ordinal, uint64_t value) {
    edit_map(TMAASYNC_EMULATE_CALLER(), map, field, ordinal, value);
}

void copy_map_and_release(void* map, uint32_t shared_map) {
    copy_map_by_warp(TMAASYNC_EMULATE_CALLER(), map, shared_map);
}

void fence_maps_release() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector.get()) detector->release_maps(fiber.number);
}

void fence_map_acquire(const void* map) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector.get()) {
        detector->acquire_map(fiber.number, reinterpret_cast<uintptr_t>(map));
    }
}

}  // namespace tmaasync_emulate
