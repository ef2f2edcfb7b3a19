#include "schedule/scheduler.hpp"

#include "schedule/worker.hpp"

namespace tmaasync_emulate {

void make_ready(Fiber& fiber) {
    Cluster& cluster = *fiber.cluster;
    if (cluster.choices.is_adversarial() && fiber.asked_in_vain == cluster.turns.progress) {
        return cluster.ready.add_in_vain(&fiber);
    }
    cluster.ready.add(&fiber, fiber.priority);
}

void block(Fiber& fiber, const Wait& wait) {
    note_event(*fiber.cluster);
    fiber.wait = wait;
    leave(fiber);
    fiber.wait = Wait{};
}

void spin(Fiber& fiber, const Wait& wait) {
    Turns& turns = fiber.cluster->turns;
    ++turns.spins;
    ++turns.vain;
    ++turns.polls;
    fiber.asked_in_vain = turns.progress;
    fiber.wait = wait;
    make_ready(fiber);
    leave(fiber);
    fiber.wait = Wait{};
}

void yield(Fiber& fiber) {
    make_ready(fiber);
    leave(fiber);
}

void pause(Fiber& fiber, bool writes) {
    Cluster& cluster = *fiber.cluster;
    const bool is_alone = cluster.launch.clusters() == 1 && !cluster.launch.history;
    if (is_alone || cluster.turns.pauses == 0 || !cluster.worker->choices.pauses(writes)) return;
    --cluster.turns.pauses;
    cluster.halt = Halt::kPaused;
    yield(fiber);
}

void note_progress(Cluster& cluster) {
    note_event(cluster);
    ++cluster.turns.progress;
    ++cluster.worker->progress;
    cluster.turns.polls = 0;
    cluster.turns.spins = 0;
    cluster.turns.turns = 0;
    if (cluster.choices.is_adversarial()) {
        cluster.ready.reconsider([](const Fiber* fiber) { return fiber->priority; });
    }
}

void note_event(Cluster& cluster) {
    cluster.turns.vain = 0;
    cluster.worker->note_event();
}

void note_change(Cluster& cluster) {
    note_event(cluster);
    cluster.turns.polls = 0;
}

void wake(Fiber* fiber) {
    note_event(*fiber->cluster);
    fiber->wait.kind = Wait::Kind::kNone;
    make_ready(*fiber);
}

void wake_all(std::vector<Fiber*>& fibers) {
    for (Fiber* fiber : fibers) wake(fiber);
    fibers.clear();
}

}  // namespace tmaasync_emulate
