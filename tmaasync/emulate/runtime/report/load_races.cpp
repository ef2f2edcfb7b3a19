#include "report/load_races.hpp"

#include "barriers/releases.hpp"
#include "memory/unwritten.hpp"
#include "state/names.hpp"

namespace tmaasync_emulate {

// A TMA load of a race, and the mbarrier that counts it.
struct CountedLoad {
    const Access* access = nullptr;
    const Cta* cta = nullptr;
    const Mbarrier* barrier = nullptr;
};

static CountedLoad counted(const Cluster& cluster, const Access& access) {
    if (access.operation != Operation::kTmaLoad || access.cluster != cluster.index) return {};
    for (const Cta& cta : cluster.ctas) {
        for (const Mbarrier& barrier : cta.barriers) {
            const Agent agent = barrier.races.agent;
            if (agent != kNoAgent && agent == access.agent) return {&access, &cta, &barrier};
        }
    }
    return {};
}

static const Fiber& thread_of(const Cluster& cluster, const Access& access) {
    return cluster.fibers[access.thread];
}

static Reason early_phase_of(const Cluster& cluster, const CountedLoad& load) {
    for (const LateLoad& late : load.barrier->history.late) {
        if (late.order != load.access->order) continue;
        return early_phase(cluster, *load.cta, *load.barrier, late.phase);
    }
    return {};
}

// A wait of the thread for parity 1 on the new barrier of the load.
static Reason passed_by_user(const Fiber& user, const CountedLoad& load) {
    for (const EndedWait& wait : user.past.waits) {
        if (!wait.is_on(*load.cta, load.barrier->offset)) continue;
        if (wait.phase != EndedWait::kNoPhase) continue;
        const Reason passed(FaultKind::kPassedAtFirst, name_of({&user, wait.site}));
        return {FaultKind::kLoadPassedAtFirst, passed};
    }
    return {};
}

// A second wait for the same phase, with a wait on another stage's barrier between both.
static Reason repeated(const Fiber& fiber, const EndedWait& last) {
    bool has_moved_on = false;
    for (auto wait = fiber.past.waits.rbegin(); wait != fiber.past.waits.rend(); ++wait) {
        if (wait->order > last.order || &*wait == &last) continue;
        const bool is_same = wait->is_on(*last.cta, last.barrier);
        if (!is_same) has_moved_on = true;
        if (!is_same || !has_moved_on) continue;
        if (wait->phase != last.phase) return {};
        const Reason who = name_of({&fiber, last.site});
        if (last.phase == EndedWait::kNoPhase) {
            return {FaultKind::kNeverReleased, barrier_at(last.barrier), who};
        }
        return {FaultKind::kRepeatedWait, who, barrier_at(last.barrier), last.phase};
    }
    return {};
}

// --- the release before a load ---

// True if the thread, or a thread of its warp that arrives for all lanes, has arrived. One thread
// may arrive for the four warps of a wgmma.
static bool has_arrived(const Arrived& arrived, const Fiber& reader, Operation operation) {
    const auto& warps = arrived.warps.warps();
    const bool is_each = arrived.threads.size() > warps.size();
    if (is_each) {
        return std::count(arrived.threads.begin(), arrived.threads.end(), reader.number) > 0;
    }
    const uint32_t width = operation == Operation::kWgmma ? 4 : 1;
    return std::any_of(warps.begin(), warps.end(), [&](uint32_t warp) {
        return warp / width == warp_number(reader) / width;
    });
}

// The release that a load waited for.
struct Release {
    const Fiber* issuer = nullptr;
    const EndedWait* wait = nullptr;
    const Mbarrier* barrier = nullptr;  // null if its thread has waited for none

    bool is_last_phase() const { return barrier->phase == wait->phase + 1; }
    const Arrived& arrived() const { return barrier->history.arrived_before; }
    // In the phase, or in any if another phase has completed since.
    bool has_arrival_of(const Cta& cta) const {
        const BarrierHistory& history = barrier->history;
        const auto& warps = (is_last_phase() ? arrived().warps : history.arrivers).warps();
        return std::any_of(warps.begin(), warps.end(), [&](uint32_t warp) {
            return rank_of(*issuer->cluster, warp) == cta.rank;
        });
    }
};

static Release release_before(const Cluster& cluster, const Access& load) {
    const Fiber& issuer = thread_of(cluster, load);
    const EndedWait* const wait = last_wait(issuer, load.order, false);
    return wait ? Release{&issuer, wait, barrier_of(*wait->cta, wait->barrier)} : Release{};
}

static Reason released_by(FaultKind kind, const Release& release) {
    const Reason owner = in_cluster(*release.issuer->cluster, *release.wait->cta);
    Reason reason(kind, barrier_at(release.wait->barrier), owner, release.wait->phase);
    add_warps(reason, *release.issuer, release.arrived());
    return reason;
}

static Reason not_released_by(const Release& release, const Fiber& reader) {
    Reason reason = released_by(FaultKind::kNotReleased, release);
    reason.add(name_of({&reader, 0}, *release.issuer));
    reason.add(release.barrier->count);
    return reason;
}

static Reason not_released_by(const Release& release, const Cta& cta) {
    Reason reason = released_by(FaultKind::kNobodyReleased, release);
    reason.add(cta.rank);
    reason.add(release.issuer->cta->rank);
    reason.add(release.barrier->count);
    return reason;
}

// True if more threads arrive than init() counts.
static bool counts_too_few(const Release& release) {
    return release.barrier && release.barrier->history.arriving_threads > release.barrier->count;
}

// The missing release of the bytes that a load writes in this CTA.
static Reason missing_release(const Release& release, const Cta& target) {
    if (!release.barrier) return {};
    if (const Reason twice = repeated(*release.issuer, *release.wait)) return twice;
    const Fiber& issuer = *release.issuer;
    if (issuer.cluster->ctas.size() == 1 || release.has_arrival_of(target)) return {};
    if (release.is_last_phase()) {
        return release.arrived().threads.empty() ? Reason() : not_released_by(release, target);
    }
    if (release.wait->phase == EndedWait::kNoPhase) return {};
    return {
        FaultKind::kNeverReleasedBy,
        barrier_at(release.wait->barrier),
        in_cluster(*issuer.cluster, *release.wait->cta),
        target.rank,
        issuer.cta->rank,
        release.barrier->count
    };
}

// --- a load and the use of a stage ---

// True for what a thread does with the bytes of a stage, and false for barriers and registers.
static bool is_use(const Access& access) {
    switch (access.operation) {
        case Operation::kRead:
        case Operation::kWrite:
        case Operation::kAtomic:
        case Operation::kBlockAtomic:
        case Operation::kLdmatrix:
        case Operation::kStmatrix:
        case Operation::kWgmma:
        case Operation::kTmaStore:
        case Operation::kTmaReduce:
        case Operation::kTmaPush:
        case Operation::kTmaPushReduce:
            return true;
        default:
            return false;
    }
}

static Reason stale_stage(const Fiber& reader, const EndedWait& wait, const CountedLoad& load) {
    const Mention awaited = barrier_at(wait.barrier), owed = barrier_at(load.barrier->offset);
    return {FaultKind::kStaleStage, name_of({&reader, wait.site}), awaited, owed, owed, awaited};
}

// The phase whose copies a load belongs to.
static uint64_t phase_of(const CountedLoad& load) {
    for (const LateLoad& late : load.barrier->history.late) {
        if (late.order == load.access->order) return late.phase;
    }
    return load.access->epoch - 1;
}

static Reason cause_of_loads(
    const Cluster& cluster, const CountedLoad& first, const CountedLoad& second
) {
    const Release release = release_before(cluster, *second.access);
    if (const Reason missing = missing_release(release, *second.cta)) return missing;
    const bool is_one_phase =
        first.barrier == second.barrier && phase_of(first) == phase_of(second);
    if (!is_one_phase) {
        if (const Reason early = early_phase_of(cluster, first)) return early;
    }
    return counts_too_few(release) ? too_few_counted(*release.issuer, *release.wait) : Reason();
}

static Reason cause_of_use(const Cluster& cluster, const CountedLoad& load, const Access& use) {
    const Fiber& user = thread_of(cluster, use);
    const Release release = release_before(cluster, *load.access);
    if (const Reason missing = missing_release(release, *user.cta)) return missing;
    if (const Reason early = early_phase_of(cluster, load)) return early;
    if (const Reason passed = passed_by_user(user, load)) return passed;
    const EndedWait* const wait = last_wait(user, use.order, true);
    const bool is_of_load = wait && wait->is_on(*load.cta, load.barrier->offset);
    const bool is_stale = wait && wait->cta == load.cta && !is_of_load;
    const bool is_load_first = load.access->order < use.order;
    if (is_load_first && is_stale) return stale_stage(user, *wait, load);
    if (is_load_first && !is_of_load) return {};
    if (is_load_first) {
        if (const Reason twice = repeated(user, *wait)) return twice;
    }
    if (!release.barrier) return {};
    const bool runs_ahead =
        !release.is_last_phase() || release.barrier->phase > load.barrier->phase;
    if (runs_ahead && counts_too_few(release))
        return too_few_counted(*release.issuer, *release.wait);
    if (!release.is_last_phase() || release.arrived().threads.empty()) return {};
    if (!has_arrived(release.arrived(), user, use.operation)) {
        return not_released_by(release, user);
    }
    if (is_load_first) return {};
    if (is_stale) return stale_stage(user, *wait, load);
    if (use.is_async) return {};  // its wait is missing
    const Reason owner = in_cluster(cluster, *release.wait->cta);
    return {
        FaultKind::kReleasedFirst, name_of({&user, 0}), barrier_at(release.wait->barrier), owner
    };
}

Reason cause_of_load_race(const Cluster& cluster, const Race& race) {
    const bool is_of_fence = race.lacks_proxy_fence || race.has_relaxed_arrival;
    const bool is_here =
        race.first.cluster == cluster.index && race.second.cluster == cluster.index;
    if (race.place.space != Space::kShared || is_of_fence || !is_here) return {};
    const CountedLoad first = counted(cluster, race.first), second = counted(cluster, race.second);
    if (first.access && second.access) return cause_of_loads(cluster, first, second);
    if (first.access && is_use(race.second)) return cause_of_use(cluster, first, race.second);
    if (second.access && is_use(race.first)) return cause_of_use(cluster, second, race.first);
    return {};
}

}  // namespace tmaasync_emulate
