// The runtime as kernels see it (tmaasync_emulate/calls.hpp) and as Python does. Compiled once, and
// never with the instrumentation that a kernel may have.
#include <tmaasync_emulate/calls.hpp>

#include "launch.hpp"

namespace tmaasync_emulate {

// --- the thread that runs ------------------------------------------------------------------------

void fail(const char* reason) {
    Fiber& fiber = current_fiber();
    fiber.cluster->fail(fiber, reason);
}

void spin(const char* instruction) {
    Fiber& fiber = current_fiber();
    fiber.cluster->spin(fiber, {.instruction = instruction});
}

// --- threads together ----------------------------------------------------------------------------

void sync_warp(uint32_t mask) {
    meet("__syncwarp", mask, &nothing, nullptr);
}

bool elect() {
    return elect_lane();
}

uint64_t shuffle(uint32_t mask, uint64_t value, uint32_t source) {
    return shuffle_lanes(mask, value, source);
}

uint32_t ballot(uint32_t mask, bool value) {
    return ballot_lanes(mask, value);
}

void store_matrix(uint32_t row, int matrices, bool is_transposed, const uint32_t* values) {
    StoreMatrix mine{.row = row, .matrices = matrices, .is_transposed = is_transposed};
    for (int matrix = 0; matrix < matrices; ++matrix) mine.values[matrix] = values[matrix];
    store_matrices_of_lane(mine);
}

void named_barrier_sync(uint32_t number, uint32_t threads) {
    arrive_at_named(current_fiber(), number, threads, true);
}

void named_barrier_arrive(uint32_t number, uint32_t threads) {
    arrive_at_named(current_fiber(), number, threads, false);
}

void cluster_barrier_arrive(bool) {
    Fiber& fiber = current_fiber();
    fiber.cluster->arrive_at_cluster(fiber);
}

void cluster_barrier_wait() {
    Fiber& fiber = current_fiber();
    fiber.cluster->wait_for_cluster(fiber);
}

// --- memory order --------------------------------------------------------------------------------

// Memory is in order here.
void fence(Scope) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void fence_mbarrier_init() {}

void fence_proxy_async_shared() {}

void fence_proxy_async_global() {}

void before_atomic(const void*) {}

// One that changes nothing asks: for a lock, or for a flag that another thread sets.
void after_atomic(const void*, bool has_changed) {
    Fiber& fiber = current_fiber();
    if (!has_changed) return fiber.cluster->spin(fiber, {.instruction = "atomic"});
    fiber.cluster->note_event();
    if (fiber.cluster->choices().yields_to_atomics()) fiber.cluster->yield(fiber);
}

// --- mbarriers -----------------------------------------------------------------------------------

void mbarrier_init(uint32_t barrier, uint32_t count) {
    init_barrier(current_fiber(), barrier, count);
}

void mbarrier_inval(uint32_t barrier) {
    invalidate_barrier(current_fiber(), barrier);
}

uint64_t mbarrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes, Order) {
    return arrive(current_fiber(), barrier, count, bytes);
}

void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
    expect_bytes(current_fiber(), barrier, bytes);
}

void mbarrier_complete_tx(uint32_t barrier, uint32_t bytes) {
    deliver_bytes(current_fiber(), barrier, bytes);
}

bool mbarrier_try_wait(uint32_t barrier, uint32_t parity, Order) {
    return wait_for_parity(current_fiber(), barrier, parity, "mbarrier.try_wait.parity");
}

bool mbarrier_test_wait(uint32_t barrier, uint32_t parity, Order) {
    return test_parity(current_fiber(), barrier, parity);
}

// --- asynchronous copies -------------------------------------------------------------------------

void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
    Flight flight{.kind = Flight::Kind::kBulk};
    flight.global = global;
    flight.bytes = bytes;
    issue_load(current_fiber(), flight, shared, barrier);
}

void bulk_store(void* global, uint32_t shared, uint32_t bytes) {
    Store store{.kind = Store::Kind::kBulk};
    store.global = global;
    store.bytes = bytes;
    issue_store(current_fiber(), store, shared);
}

void tensor_load(uint32_t shared, const Box& box, uint32_t barrier) {
    Fiber& fiber = current_fiber();
    issue_load(fiber, flight_of(fiber, box), shared, barrier);
}

void tensor_load_multicast(uint32_t shared, const Box& box, uint32_t barrier, uint32_t cta_mask) {
    Fiber& fiber = current_fiber();
    issue_multicast(fiber, flight_of(fiber, box), shared, barrier, cta_mask);
}

void tensor_store(const Box& box, uint32_t shared) {
    Fiber& fiber = current_fiber();
    issue_store(fiber, copy_of<Store>(fiber, box), shared);
}

void tensor_reduce(int op, const Box& box, uint32_t shared) {
    Fiber& fiber = current_fiber();
    Store store = copy_of<Store>(fiber, box);
    store.kind = Store::Kind::kReduce;
    store.op = static_cast<ReduceOp>(op);
    issue_store(fiber, store, shared);
}

void tensor_prefetch(const Box& box) {
    copy_of<Flight>(current_fiber(), box);
}

void check_map(const void* map) {
    decode_for(current_fiber(), map);
}

void bulk_commit() {
    commit_stores(current_fiber());
}

void bulk_wait(uint32_t pending) {
    wait_for_writes(current_fiber(), pending);
}

void bulk_wait_read(uint32_t pending) {
    wait_for_reads(current_fiber(), pending);
}

// --- wgmma ---------------------------------------------------------------------------------------

void mma_fence() {}

void mma_issue(const Mma& mma) {
    issue_mma(current_fiber(), mma);
}

void mma_commit() {
    commit_mmas(current_fiber());
}

void mma_wait(uint32_t pending) {
    wait_for_mmas(current_fiber(), pending);
}

}  // namespace tmaasync_emulate

// --- as Python sees it ---------------------------------------------------------------------------

extern "C" TMAASYNC_EMULATE_CALL char* tmaasync_emulate_launch(
    void (*kernel)(void* const*),
    const tmaasync_emulate::LaunchNumbers* numbers,
    void* const* arguments
) {
    return tmaasync_emulate::launch(kernel, *numbers, arguments);
}

// What one cluster of a launch takes at most.
extern "C" TMAASYNC_EMULATE_CALL uint64_t
tmaasync_emulate_cluster_bytes(uint64_t ctas, uint64_t threads_per_cta) {
    return tmaasync_emulate::Cluster::most_bytes(ctas, threads_per_cta);
}
