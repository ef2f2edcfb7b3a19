#include "launch/run.hpp"

#include "copies/landing.hpp"
#include "copies/stores.hpp"
#include "crash/diagnosis.hpp"
#include "launch/deadlock.hpp"
#include "schedule/faults.hpp"
#include "schedule/worker.hpp"

namespace tmaasync_emulate {

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

static void land_one(Cluster& cluster) {
    const std::size_t index = cluster.choices.copy(cluster.flights.size());
    const Flight flight = std::move(cluster.flights[index]);
    cluster.flights.erase(cluster.flights.begin() + static_cast<std::ptrdiff_t>(index));
    note_progress(cluster);
    cluster.running = flight.issuer;
    land(cluster, flight);
    note_race(cluster);
}

// Called when no copy is in flight that could wake a thread.
static void stop_or_pass(Cluster& cluster) {
    if (cluster.ready.empty()) return report_deadlock(cluster);
    if (cluster.turns.polls > kPolls + 2 * cluster.live) cluster.halt = Halt::kPolls;
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
