#include "barriers/grid_barrier.hpp"

#include "memory/accesses.hpp"
#include "schedule/faults.hpp"
#include "schedule/scheduler.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

namespace {

constexpr uint32_t kBytes = sizeof(uint32_t);
// Number of the arrivals as atomic operations: no other one has it.
constexpr uint64_t kArrival = 1;

uint32_t blocks_of(const Fiber& fiber) {
    return Launch::count(fiber.cluster->launch.grid);
}

// A wait acquires what arrivals of its phase release, and nothing of the next phase, which some
// blocks may be in already: odd and even phases have places of their own, which are no words.
uintptr_t place_of_phase(uintptr_t word, uint32_t phase) {
    return word + 1 + phase % 2;
}

}  // namespace

uint32_t* grid_barrier_of(Fiber& fiber) {
    uint32_t* const word = fiber.cluster->launch.grid_barrier;
    if (!word) fail(fiber, FaultKind::kGridIsNotCooperative);
    return word;
}

// The word counts all arrivals. A thread learns the phase alone, so arrivals of a phase commute.
uint32_t arrive_at_grid(Fiber& fiber) {
    uint32_t* const word = grid_barrier_of(fiber);
    if (fiber.has_arrived_at_grid) fail(fiber, FaultKind::kGridArrivalTwice);
    fiber.has_arrived_at_grid = true;
    const auto address = reinterpret_cast<uintptr_t>(word);
    const uint32_t blocks = blocks_of(fiber);
    let_other_clusters_run(fiber, address, true);
    SyncOrder* const order = fiber.cluster->launch.order;
    if (order) order->access(fiber, address, kBytes, SyncAccess::kPost, {kArrival, {1, blocks}});
    reach_atomically(fiber, address, kBytes, true, Scope::kGpu);
    const uint32_t before = __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
    const uint32_t phase = before / blocks;
    if (Detector* const detector = fiber.cluster->detector.get()) {
        detector->release_at(fiber.number, place_of_phase(address, phase), Scope::kGpu);
    }
    if (order && (before + 1) % blocks == 0) order->note_post(address, phase + 1);
    note_change(*fiber.cluster);
    if (fiber.cluster->choices.yields_to_atomics()) yield(fiber);
    return phase;
}

void wait_for_grid(Fiber& fiber, uint32_t phase) {
    const uint32_t* const word = grid_barrier_of(fiber);
    const auto address = reinterpret_cast<uintptr_t>(word);
    const uint32_t blocks = blocks_of(fiber);
    let_other_clusters_run(fiber, address, false);
    SyncOrder* const order = fiber.cluster->launch.order;
    while (true) {
        if (order) order->hold(fiber);
        reach_atomically(fiber, address, kBytes, false, Scope::kGpu);
        if (__atomic_load_n(word, __ATOMIC_SEQ_CST) / blocks > phase) break;
        spin(fiber, {.instruction = "the barrier of the grid"});
    }
    fiber.has_arrived_at_grid = false;
    if (order) order->note_wait(fiber, address, phase + 1);
    if (Detector* const detector = fiber.cluster->detector.get()) {
        detector->acquire_at(fiber.number, place_of_phase(address, phase), Scope::kGpu);
    }
}

}  // namespace tmaasync_emulate
