#include "memory/accesses.hpp"

#include "memory/grids.hpp"
#include "schedule/faults.hpp"
#include "state/names.hpp"

namespace tmaasync_emulate {

void check_no_barrier(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    const Cta& cta = fiber.cluster->ctas[rank];
    const std::size_t end = std::min<std::size_t>((offset + bytes + 7) / 8, cta.barrier_at.size());
    for (std::size_t word = offset / 8; word < end; ++word) {
        const int32_t index = cta.barrier_at[word];
        if (index < 0 || !cta.barriers[static_cast<std::size_t>(index)].is_valid) continue;
        fail(
            fiber, {FaultKind::kWriteOverMbarrier, bytes, offset,
                    barrier_at(static_cast<uint32_t>(word) * 8), of_cta(fiber, cta)}
        );
    }
}

static bool may_repeat(Operation operation, uint64_t bytes) {
    return operation == Operation::kWrite && bytes <= std::tuple_size_v<decltype(Repeat::held)>;
}

// Called before a store: keeps the old bytes if another lane has just stored to them.
static void note_repeat(Fiber& fiber, const void* pointer, uint64_t bytes) {
    const std::optional<Race> race = fiber.cluster->detector->take_repeated();
    if (!race) return;
    Repeat repeat{static_cast<const uint8_t*>(pointer), static_cast<uint32_t>(bytes), {}, *race};
    std::memcpy(repeat.held.data(), pointer, bytes);
    fiber.races.repeat = std::make_unique<Repeat>(repeat);
}

void touch_shared(
    Fiber& fiber, Operation operation, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes
) {
    Detector& detector = *fiber.cluster->detector;
    Actor actor = detector.ordinary(fiber.number, fiber.site, operation);
    std::optional<View> before_store;
    if (fiber.races.async_store != kNoAgent) {
        before_store = detector.view_of(fiber.number);
        actor.agent = fiber.races.async_store;
        actor.epoch = fiber.races.async_store_epoch;
        actor.view = &*before_store;
    }
    actor.may_repeat = may_repeat(operation, bytes);
    detector.shared(actor, rank, offset, bytes, writes);
    stop_if_race(fiber);
    if (actor.may_repeat) note_repeat(fiber, fiber.cluster->ctas[rank].window + offset, bytes);
}

void touch_global(
    Fiber& fiber,
    Operation operation,
    uintptr_t address,
    uint64_t bytes,
    bool writes,
    bool is_system
) {
    check_grids_awaited(fiber, address);
    Detector& detector = *fiber.cluster->detector;
    Actor actor = detector.ordinary(fiber.number, fiber.site, operation, is_system);
    actor.may_repeat = may_repeat(operation, bytes);
    detector.global(actor, address, bytes, writes);
    stop_if_race(fiber);
    if (actor.may_repeat) note_repeat(fiber, reinterpret_cast<const void*>(address), bytes);
}

Agent bulk_agent(Cluster& cluster, Agent& agent) {
    if (agent == kNoAgent) agent = cluster.detector->new_agent();
    return agent;
}

Access access_in(
    const Cluster& cluster, Agent thread, Epoch epoch, uintptr_t site, Operation operation
) {
    Access access{.agent = thread, .epoch = epoch, .thread = thread, .site = site};
    access.cluster = static_cast<uint32_t>(cluster.index);
    access.operation = operation;
    access.is_write = true;
    return access;
}

}  // namespace tmaasync_emulate
