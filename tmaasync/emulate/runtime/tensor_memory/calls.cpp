// The functions that kernels call for tcgen05.

#include <tmaasync_emulate/tcgen05_calls.hpp>

#include "schedule/caller.hpp"
#include "tensor_memory/allocation.hpp"
#include "tensor_memory/operations.hpp"
#include "tensor_memory/transfers.hpp"

namespace tmaasync_emulate {

void tcgen05_alloc(uint32_t group, uint32_t shared, uint32_t columns) {
    allocate_columns(TMAASYNC_EMULATE_CALLER(), group, shared, columns);
}

void tcgen05_dealloc(uint32_t group, uint32_t address, uint32_t columns) {
    free_columns(TMAASYNC_EMULATE_CALLER(), group, address, columns);
}

void tcgen05_relinquish(uint32_t group) {
    relinquish_permit(TMAASYNC_EMULATE_CALLER(), group);
}

void tcgen05_load(const Tcgen05Transfer& transfer, uint32_t address, uint32_t* registers) {
    load_registers(TMAASYNC_EMULATE_CALLER(), transfer, address, registers);
}

void tcgen05_store(const Tcgen05Transfer& transfer, uint32_t address, const uint32_t* registers) {
    store_registers(TMAASYNC_EMULATE_CALLER(), transfer, address, registers);
}

void tcgen05_wait_load() {
    wait_for_transfers(TMAASYNC_EMULATE_CALLER(), false);
}

void tcgen05_wait_store() {
    wait_for_transfers(TMAASYNC_EMULATE_CALLER(), true);
}

void tcgen05_fence_before() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (TensorRaces* races = fiber.cluster->tensor_races.get()) races->fence_before(fiber.number);
}

void tcgen05_fence_after() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (TensorRaces* races = fiber.cluster->tensor_races.get()) races->fence_after(fiber.number);
}

void tcgen05_mma(const Tcgen05Mma& mma) {
    issue_tensor_mma(TMAASYNC_EMULATE_CALLER(), mma);
}

void tcgen05_copy(const Tcgen05Copy& copy) {
    issue_tensor_copy(TMAASYNC_EMULATE_CALLER(), copy);
}

void tcgen05_shift(uint32_t group, uint32_t address) {
    issue_tensor_shift(TMAASYNC_EMULATE_CALLER(), group, address);
}

void tcgen05_commit(uint32_t group, uint32_t barrier, uint32_t cta_mask) {
    issue_tensor_commit(TMAASYNC_EMULATE_CALLER(), group, barrier, cta_mask);
}

}  // namespace tmaasync_emulate
