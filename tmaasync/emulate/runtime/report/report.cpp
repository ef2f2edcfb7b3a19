#include "report/report.hpp"

#include <string_view>

#include "report/load_races.hpp"

namespace tmaasync_emulate {

class Reporter {
public:
    // `resident` clusters wait while others have not started; 0 if all have.
    Reporter(const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others)
        : cluster_(cluster), report_(std::make_unique<OwnedReport>(cluster.failure.kind)) {
        const Launch& launch = cluster.launch;
        report_->launch = launch.number;
        if (report_->kind == ReportKind::kRace) {
            set_race(cluster.detector->race());
            report_->reason = cause_of_load_race(cluster, cluster.detector->race());
            report_->rule = cluster.detector->race().rule;
            return;
        }
        set_reason(cluster.failure);
        if (report_->kind != ReportKind::kFault) {
            add_all_waits(others);
            add_all_warps();
            add_all_barriers();
        }
        report_->resident = resident * launch.cluster_ctas();
        report_->grid = launch.clusters() * launch.cluster_ctas();
    }

    std::unique_ptr<OwnedReport> take() {
        report_->close();
        return std::move(report_);
    }

private:
    static Extents block_of(const Cta& cta) { return {cta.block.x, cta.block.y, cta.block.z}; }

    static void copy_role(char (&role)[kRoleBytes], const Warp& warp) {
        std::memcpy(role, warp.role, kRoleBytes);
    }

    void set_reason(const Failure& failure) {
        report_->reason = failure.reason;
        report_->rule = rule_of(failure.reason.kind());
        report_->is_endless = failure.is_endless;
        if (!failure.fiber) return;
        report_->has_thread = true;
        report_->block = block_of(*failure.fiber->cta);
        report_->thread = failure.fiber->index;
        copy_role(report_->role, *failure.fiber->warp);
        report_->address = address_in_library(failure.site);
        for (const uintptr_t site : failure.callers) {
            report_->all_callers.push_back(address_in_library(site));
        }
    }

    void add_all_warps() {
        for (const Cta& cta : cluster_.ctas) {
            for (uint32_t i = 0; i < cta.warps.size(); ++i) {
                WarpReport& warp = report_->all_warps.emplace_back();
                warp.block = block_of(cta);
                warp.warp = i;
                warp.has_ended = cta.warps[i].live_lanes == 0;
                copy_role(warp.role, cta.warps[i]);
            }
        }
    }

    void add_all_barriers() {
        for (const Cta& cta : cluster_.ctas) {
            for (const Mbarrier& barrier : cta.barriers) {
                report_->all_barriers.push_back(
                    {block_of(cta), barrier.offset, barrier.count, barrier.history.arriving_threads,
                     barrier.phase, report_->keep(barrier.history.arrived.warps.warps()),
                     report_->keep(barrier.history.arrivers.warps()),
                     report_->keep(barrier.history.waited.warps())}
                );
            }
        }
    }

    // Waits of this cluster first.
    void add_all_waits(const std::vector<const Cluster*>& others) {
        add_waits(cluster_);
        for (const Cluster* other : others) {
            if (other != &cluster_) add_waits(*other);
        }
    }

    // Threads of one CTA that wait for the same thing are one entry.
    void add_waits(const Cluster& cluster) {
        using Key = std::tuple<
            const Cta*, Wait::Kind, const char*, Activity, const Cta*, uint32_t, uint32_t, uint32_t,
            uintptr_t, std::string_view>;
        std::map<Key, std::vector<const Fiber*>> entries;
        std::vector<Key> order;
        for (const Fiber& fiber : cluster.fibers) {
            if (fiber.is_done) continue;
            const Wait& wait = fiber.wait;
            const Key key{fiber.cta,   wait.kind,       wait.instruction, wait.activity,
                          wait.cta,    wait.number,     wait.parity,      wait.epoch,
                          wait.polled, fiber.warp->role};
            if (entries[key].empty()) order.push_back(key);
            entries[key].push_back(&fiber);
        }
        for (const Key& key : order) report_->all_waits.push_back(wait_of(entries[key]));
    }

    WaitReport wait_of(const std::vector<const Fiber*>& fibers) {
        const Fiber& first = *fibers[0];
        const Wait& wait = first.wait;
        const Launch& launch = first.cluster->launch;
        std::vector<uint32_t> threads;
        for (const Fiber* fiber : fibers) threads.push_back(fiber->index);
        WaitReport found{};
        found.launch = launch.number;
        found.block = block_of(*first.cta);
        found.instruction = report_->keep(wait.instruction);
        found.address = launch.memory.address_in_library(first.site);
        found.threads = report_->keep(std::move(threads));
        copy_role(found.role, *first.warp);
        if (wait.polled) set_polled(found, *first.cluster, wait.polled);
        found.kind = wait.kind;
        found.activity = wait.activity;
        if (wait.kind == WaitKind::kMbarrier) set_mbarrier(found, wait, launch);
        if (wait.kind == WaitKind::kNamedBarrier) set_named(found, wait);
        if (wait.kind == WaitKind::kSignal) {
            found.signal = {wait.rank, wait.number, wait.epoch, wait.seen};
        }
        return found;
    }

    static void set_polled(WaitReport& found, const Cluster& cluster, uintptr_t address) {
        const uintptr_t offset = address - cluster.windows();
        const bool is_shared = offset < cluster.windows_bytes();
        found.is_polling = true;
        found.polled_space = is_shared ? Space::kShared : Space::kGlobal;
        found.polled = is_shared ? offset % kWindowStride : address;
    }

    // A wait on a barrier that is no longer there is one of no kind.
    void set_mbarrier(WaitReport& found, const Wait& wait, const Launch& launch) {
        found.kind = WaitKind::kNone;
        for (const Mbarrier& barrier : wait.cta->barriers) {
            if (barrier.offset != wait.number) continue;
            std::vector<uint32_t> landings;
            for (const Landing& one : barrier.history.landings) landings.push_back(one.shared);
            found.kind = WaitKind::kMbarrier;
            found.mbarrier = {
                block_of(*wait.cta),
                barrier.offset,
                barrier.phase,
                barrier.bytes,
                barrier.expected,
                barrier.pending,
                report_->keep(std::move(landings)),
                launch.memory.address_in_library(barrier.init_site),
                barrier.observed
            };
        }
    }

    static void set_named(WaitReport& found, const Wait& wait) {
        const NamedBarrier& barrier = wait.cta->named[wait.number];
        const uint32_t needed = barrier.threads ? barrier.threads : wait.cta->live;
        found.named = {wait.number, needed - barrier.arrived};
    }

    void set_race(const Race& race) {
        const bool is_one_copy = race.first.cluster == race.second.cluster &&
                                 race.first.order == race.second.order && race.first.is_async;
        const std::pair<RaceFact, bool> facts[] = {
            {RaceFact::kLacksFence, race.lacks_proxy_fence},
            {RaceFact::kWasUnwritten, race.was_unwritten},
            {RaceFact::kIsStored, race.is_stored},
            {RaceFact::kIsOneCopy, is_one_copy},
            {RaceFact::kHasRelaxedArrival, race.has_relaxed_arrival},
            {RaceFact::kIsBetweenDevices, race.is_between_devices},
            {RaceFact::kIsKnown, race.is_known},
            {RaceFact::kLacksAcquire, race.lacks_acquire},
            {RaceFact::kLacksReaderFence, race.lacks_reader_fence},
            {RaceFact::kLacksTensorBefore, race.lacks_tensor_before},
            {RaceFact::kLacksTensorAfter, race.lacks_tensor_after},
            {RaceFact::kIsIssuedBefore, race.is_issued_before},
        };
        RaceReport& found = report_->race;
        found.start = race.place.start;
        for (const auto& [fact, holds] : facts) {
            if (holds) found.facts |= static_cast<uint32_t>(fact);
        }
        found.space = race.place.space;
        found.first = access_of(race.first);
        found.second = access_of(race.second);
    }

    AccessReport access_of(const Access& access) const {
        const Launch& launch = launch_of(access);
        const uint64_t index = access.cluster - launch.first_cluster;
        const uint3 block = launch.block_of(index, access.thread / launch.threads());
        AccessReport found{};
        found.launch = launch.number;
        found.block = {block.x, block.y, block.z};
        found.thread = access.thread % launch.threads();
        found.barrier = kNothing;
        found.address = launch.memory.address_in_library(access.site);
        found.operation = access.operation;
        found.is_write = access.is_write;
        found.bytes = access.bytes;
        set_names(found, access);
        return found;
    }

    const Launch& launch_of(const Access& access) const {
        const Launch* found = &cluster_.launch;
        if (!found->races) return *found;
        for (const LaunchSpan& span : found->races->spans) {
            if (span.first <= access.cluster) found = span.launch;
        }
        return *found;
    }

    // The role of its warp, and the mbarrier that counts a load. Of other clusters nothing is
    // known.
    void set_names(AccessReport& found, const Access& access) const {
        if (access.cluster != cluster_.index) return;
        copy_role(found.role, *cluster_.fibers[access.thread].warp);
        for (const Cta& cta : cluster_.ctas) {
            for (const Mbarrier& barrier : cta.barriers) {
                if (barrier.races.agent != kNoAgent && barrier.races.agent == access.agent) {
                    found.barrier = barrier.offset;
                }
            }
        }
    }

    uintptr_t address_in_library(uintptr_t site) const {
        return cluster_.launch.memory.address_in_library(site);
    }

    const Cluster& cluster_;
    std::unique_ptr<OwnedReport> report_;
};

std::unique_ptr<OwnedReport> report_of(
    const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others
) {
    return Reporter(cluster, resident, others).take();
}

}  // namespace tmaasync_emulate
