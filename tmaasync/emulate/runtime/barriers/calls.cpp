// The functions that kernels call for barriers.

#include "barriers/cluster_barrier.hpp"
#include "barriers/grid_barrier.hpp"
#include "barriers/init_order.hpp"
#include "barriers/mbarrier.hpp"
#include "barriers/mbarrier_waits.hpp"
#include "barriers/named.hpp"
#include "schedule/caller.hpp"

namespace tmaasync_emulate {

void named_barrier_sync(uint32_t number, uint32_t threads) {
    arrive_at_named(TMAASYNC_EMULATE_CALLER(), number, threads, true);
}

void sync_block(uint32_t line) {
    arrive_at_named(TMAASYNC_EMULATE_CALLER(), 0, 0, true, line);
}

uint32_t count_in_block(bool value, uint32_t line) {
    return count_at_barrier(TMAASYNC_EMULATE_CALLER(), value, line);
}

void named_barrier_arrive(uint32_t number, uint32_t threads) {
    arrive_at_named(TMAASYNC_EMULATE_CALLER(), number, threads, false);
}

void cluster_barrier_arrive(bool releases) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    arrive_at_cluster(fiber, releases);
}

void cluster_barrier_wait() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    wait_for_cluster(fiber);
}

void mbarrier_init(uint32_t barrier, uint32_t count) {
    init_barrier(TMAASYNC_EMULATE_CALLER(), barrier, count);
}

void mbarrier_inval(uint32_t barrier) {
    invalidate_barrier(TMAASYNC_EMULATE_CALLER(), barrier);
}

void mbarrier_check_no_complete(uint32_t barrier, uint32_t count) {
    check_completes_nothing(TMAASYNC_EMULATE_CALLER(), barrier, count);
}

uint64_t mbarrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes, Order order) {
    return arrive(TMAASYNC_EMULATE_CALLER(), barrier, count, bytes, order == Order::kOrdered);
}

uint64_t mbarrier_arrive_drop(uint32_t barrier, uint32_t count, Order order) {
    return arrive_and_drop(TMAASYNC_EMULATE_CALLER(), barrier, count, order == Order::kOrdered);
}

void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
    expect_bytes(TMAASYNC_EMULATE_CALLER(), barrier, bytes);
}

void mbarrier_complete_tx(uint32_t barrier, uint32_t bytes) {
    deliver_bytes(TMAASYNC_EMULATE_CALLER(), barrier, bytes);
}

void async_store_begin(uint32_t barrier) {
    begin_async_store(TMAASYNC_EMULATE_CALLER(), barrier);
}

void async_store_end(uint32_t barrier, uint32_t bytes) {
    end_async_store(TMAASYNC_EMULATE_CALLER(), barrier, bytes);
}

bool mbarrier_try_wait(uint32_t barrier, uint32_t parity, Order order) {
    return wait_for_parity(
        TMAASYNC_EMULATE_CALLER(), barrier, parity, order == Order::kOrdered,
        "mbarrier.try_wait.parity"
    );
}

bool mbarrier_test_wait(uint32_t barrier, uint32_t parity, Order order) {
    return test_parity(TMAASYNC_EMULATE_CALLER(), barrier, parity, order == Order::kOrdered);
}

bool mbarrier_test_state(uint32_t barrier, uint64_t state) {
    return test_state(TMAASYNC_EMULATE_CALLER(), barrier, state);
}

void fence_mbarrier_init() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (fiber.cluster->detector) fence_inits(fiber);
}

uint32_t* grid_barrier() {
    return grid_barrier_of(TMAASYNC_EMULATE_CALLER());
}

uint32_t grid_barrier_arrive() {
    return arrive_at_grid(TMAASYNC_EMULATE_CALLER());
}

void grid_barrier_wait(uint32_t phase) {
    wait_for_grid(TMAASYNC_EMULATE_CALLER(), phase);
}

}  // namespace tmaasync_emulate
