#include "launch/start.hpp"

#include "launch/thread_end.hpp"
#include "schedule/faults.hpp"
#include "schedule/worker.hpp"

namespace tmaasync_emulate {

// The most pauses of a cluster. A histogram of atomic operations would do nothing but pause.
static constexpr uint32_t kPauses = 256;

// The first function of every thread.
static void run_thread() {
    Fiber& fiber = current_fiber();
    const Launch& launch = fiber.cluster->launch;
    try {
        launch.kernel(launch.arguments);
    } catch (...) {
        fail(fiber, FaultKind::kCppException);
    }
    exit_thread(fiber);
}

static void name_thread(Fiber& fiber, const Launch& launch) {
    const uint3 block = launch.block;
    const uint32_t index = fiber.index;
    fiber.thread = {index % block.x, index / block.x % block.y, index / block.x / block.y};
    fiber.block = fiber.cta->block;
    fiber.block_dim = block;
    fiber.grid_dim = launch.grid;
    fiber.rank = fiber.cta->rank;
    fiber.ctas = launch.cluster_ctas();
    fiber.cluster_dim = launch.cluster;
    fiber.static_offset = launch.dynamic_bytes();
    fiber.window = fiber.cta->window;
    fiber.has_static_shared = &fiber.cta->has_static_shared;
}

static void start_thread(Cluster& cluster, Cta& cta, uint32_t index) {
    const std::size_t slot = std::size_t{cta.rank} * cluster.launch.threads() + index;
    Fiber& fiber = cluster.fibers[slot];
    std::destroy_at(&fiber);
    std::construct_at(&fiber);
    fiber.cluster = &cluster;
    fiber.cta = &cta;
    fiber.warp = &cta.warps[index / 32];
    fiber.warpgroup = &cta.warpgroups[index / 128];
    fiber.index = index;
    fiber.number = static_cast<uint32_t>(slot);
    fiber.lane = index % 32;
    fiber.warp->live_lanes |= 1u << fiber.lane;
    fiber.live_lanes = &fiber.warp->live_lanes;
    name_thread(fiber, cluster.launch);
    fiber.reaches = cluster.worker->watch.reaches();
    if (!cluster.detector) fiber.stack = cluster.stacks->reach_of(slot);
    cluster.stacks->set_owner(slot, &fiber);
    fiber.priority = cluster.choices.priority(fiber.number);
    start_context(fiber.context, cluster.stacks->at(slot), &run_thread);
    make_ready(fiber);
}

static void start_cta(Cluster& cluster, uint64_t index, uint32_t rank) {
    const Launch& launch = cluster.launch;
    const uint32_t threads = launch.threads();
    Cta& cta = cluster.ctas[rank];
    for (const Mbarrier& barrier : cta.barriers) cta.barrier_at[barrier.offset / 8] = -1;
    cta.barriers.clear();
    cta.races = {};
    cta.named = {};
    cta.votes = {};
    cta.block = launch.block_of(index - launch.first_cluster, rank);
    cta.rank = rank;
    cta.live = threads;
    cta.has_static_shared = false;
    cta.window = cluster.shared->at(rank);
    cta.warps.assign((threads + 31) / 32, {});
    cta.warpgroups.assign((threads + 127) / 128, {});
    for (Warpgroup& group : cta.warpgroups) group.registers = launch.registers;
    cta.register_waiters.clear();
    cta.grid_waits.clear();
    cluster.shared->poison(rank, launch.window_bytes());
    for (uint32_t thread = 0; thread < threads; ++thread) start_thread(cluster, cta, thread);
}

void start(Cluster& cluster, uint64_t index) {
    const Launch& launch = cluster.launch;
    cluster.index = index;
    const uint64_t seed = launch.seed * 0x2545f4914f6cdd1d + index;
    cluster.choices = Choices(launch.policy, seed, launch.cluster_ctas(), launch.threads());
    cluster.failure = {};
    cluster.ready.clear();
    cluster.flights.clear();
    cluster.late_stores.clear();
    cluster.barrier = {};
    cluster.turns.pauses = kPauses;
    note_progress(cluster);
    if (cluster.detector) cluster.detector->reset(static_cast<uint32_t>(index), launch.history);
    if (Recorder* recorder = cluster.recorder.get()) {
        recorder->reset(index - launch.first_cluster);
        if (launch.begins_after) recorder->come_after(launch.begins_after);
    }
    cluster.live = static_cast<uint32_t>(cluster.fibers.size());
    for (uint32_t rank = 0; rank < cluster.ctas.size(); ++rank) {
        start_cta(cluster, index, rank);
    }
}

}  // namespace tmaasync_emulate
