#include "launch/run.hpp"

#include "copies/landing.hpp"
#include "copies/stores.hpp"
#include "crash/diagnosis.hpp"
#include "launch/deadlock.hpp"
#include "launch/thread_end.hpp"
#include "schedule/faults.hpp"
#include "schedule/worker.hpp"
#include "tensor_memory/operations.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

// --- the start ----------------------------------------------------------------------------------

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
    cta.tensor = {};
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
    cluster.failed_requests.clear();
    cluster.turns.pauses = kPauses;
    note_progress(cluster);
    if (cluster.detector) {
        cluster.detector->reset(static_cast<uint32_t>(index), launch.history);
        cluster.tensor_races->reset();
    }
    if (Recorder* recorder = cluster.recorder.get()) {
        recorder->reset(index - launch.first_cluster);
        if (launch.begins_after) recorder->come_after(launch.begins_after);
    }
    cluster.live = static_cast<uint32_t>(cluster.fibers.size());
    for (uint32_t rank = 0; rank < cluster.ctas.size(); ++rank) {
        start_cta(cluster, index, rank);
    }
}

// --- the scheduler's loop
// --------------------------------------------------------------------------

// Polls before another cluster runs, in addition to two of each live thread.
static constexpr std::size_t kPolls = 64;
// Turns per thread without progress, after which threads run fairly and copies land.
static constexpr uint64_t kPatience = 1024;

// On the chip, all threads run in the end and all copies land: a policy's patience is limited.
static bool is_patience_over(const Cluster& cluster) {
    return cluster.turns.turns > kPatience * cluster.fibers.size();
}

static Fiber* next_thread(Cluster& cluster) {
    ++cluster.turns.turns;
    const bool is_fair = cluster.choices.is_adversarial() && is_patience_over(cluster);
    return cluster.ready.take(cluster.choices, is_fair, [&](const Fiber* fiber) {
        return cluster.choices.passes_over(fiber->number);
    });
}

// Lets other clusters run if all threads that can run poll.
static void pass_if_polling(Cluster& cluster) {
    if (cluster.turns.polls > kPolls + 2 * cluster.live) cluster.halt = Halt::kPolls;
}

static void land_one(Cluster& cluster) {
    SyncOrder* const order = cluster.launch.order;
    const std::size_t index =
        order ? order->next_landing(cluster) : cluster.choices.copy(cluster.flights.size());
    if (index == SyncOrder::kNone) {
        ++cluster.turns.polls;
        ++cluster.turns.vain;
        return pass_if_polling(cluster);
    }
    const Flight flight = std::move(cluster.flights[index]);
    cluster.flights.erase(cluster.flights.begin() + static_cast<std::ptrdiff_t>(index));
    note_progress(cluster);
    cluster.running = flight.issuer;
    const bool is_tensor = flight.kind == Flight::Kind::kTensor;
    is_tensor ? execute_tensor_operation(cluster, *flight.target) : land(cluster, flight);
    note_race(cluster);
}

// Called when no copy is in flight that could wake a thread.
static void stop_or_pass(Cluster& cluster) {
    if (cluster.ready.empty()) return report_deadlock(cluster);
    pass_if_polling(cluster);
}

static void resume(Cluster& cluster) {
    cluster.running = next_thread(cluster);
    on_fiber = true;
    switch_context(cluster.scheduler, cluster.running->context);
    on_fiber = false;
}

static void step(Cluster& cluster, const Watchdog& watchdog) {
    if (watchdog.is_spent()) {
        cluster.failure.kind = Failure::Kind::kTimeout;
        return;
    }
    const Turns& turns = cluster.turns;
    const bool is_timed = turns.vain == 0 || !cluster.launch.posts;
    // In launches that run together, polls take no time: their number means nothing.
    if (cluster.recorder && is_timed) cluster.recorder->tick();
    while (!cluster.flights.empty() && cluster.choices.lands()) land_one(cluster);
    const ReadyThreads& ready = cluster.ready;
    if (ready.empty() || turns.spins > ready.size() || is_patience_over(cluster)) {
        cluster.flights.empty() ? stop_or_pass(cluster) : land_one(cluster);
        if (cluster.halt == Halt::kPolls) return;
    }
    if (!ready.empty() && !cluster.has_failed()) resume(cluster);
}

static void run(Cluster& cluster, const Watchdog& watchdog) {
    while (cluster.live > 0 && !cluster.has_failed() && cluster.halt == Halt::kNone) {
        step(cluster, watchdog);
    }
    if (cluster.live > 0) return;
    if (!cluster.has_failed()) write_late_stores(cluster);
    if (cluster.detector) cluster.detector->end_cluster();
}

Halt go_on(Cluster& cluster, CrashSite& site, const Watchdog& watchdog) {
    cluster.halt = Halt::kNone;
    cluster.turns.polls = 0;
    cluster.worker->code = cluster.launch.memory.code;
    // Ranges of another cluster's shared memory are not this cluster's.
    cluster.worker->watch.forget_reaches();
    if (const int jumped = sigsetjmp(site.resume, 0)) {
        report_jump(cluster, site.crash, jumped);
    } else {
        site.is_armed = true;
        run(cluster, watchdog);
    }
    site.is_armed = false;
    on_fiber = false;
    if (cluster.live == 0 || cluster.has_failed()) cluster.halt = Halt::kEnded;
    if (cluster.halt == Halt::kEnded) cluster.worker->note_event();
    return cluster.halt;
}

}  // namespace tmaasync_emulate
