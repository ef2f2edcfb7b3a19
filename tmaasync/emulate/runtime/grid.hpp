// The order in which a launch's clusters start, and the choice of the resident cluster that runs
// next.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "machine.hpp"
#include "report.hpp"
#include "signal_handler.hpp"

namespace tmaasync_emulate {

// --- the order in which clusters start -----------------------------------------------------------

// The clusters of one window start in any order. They are resident together, so that a cluster may
// wait for an earlier one, which the chip would have started before it.
constexpr uint64_t kWindow = 8;

class StartOrder {
public:
    StartOrder(uint64_t clusters, uint64_t window, ClusterChoices choices)
        : clusters_(clusters), window_(window), choices_(choices) {}

    // Takes the grid index of the next cluster; false if all have started.
    bool take(uint64_t& index) {
        const std::lock_guard guard(lock_);
        if (taken_ == clusters_) return false;
        if (taken_ % window_ == 0) draw();
        index = taken_ / window_ * window_ + places_[taken_ % window_];
        ++taken_;
        return true;
    }

    bool is_empty() {
        const std::lock_guard guard(lock_);
        return taken_ == clusters_;
    }

private:
    void draw() {
        places_.resize(std::min(window_, clusters_ - taken_));
        std::iota(places_.begin(), places_.end(), 0);
        if (!choices_.is_shuffled()) return;
        for (std::size_t i = places_.size(); i > 1; --i) {
            std::swap(places_[i - 1], places_[choices_.below(i)]);
        }
    }

    const uint64_t clusters_;
    const uint64_t window_;
    ClusterChoices choices_;
    std::mutex lock_;
    uint64_t taken_ = 0;
    std::vector<uint64_t> places_;
};

// --- a grid --------------------------------------------------------------------------------------

// A launch of a grid of launches. It starts when another one, of the same stream, has ended.
struct Lane {
    Lane(const Launch& launch, uint64_t most_resident, uint64_t window, const Lane* previous)
        : launch(launch),
          most_resident(most_resident),
          previous(previous),
          order(launch.clusters(), window, {launch.policy, launch.seed + launch.number}) {}

    bool may_start() const { return !previous || previous->is_over(); }
    bool is_over() const { return ended == launch.clusters(); }

    Launch launch;
    const uint64_t most_resident;
    const Lane* previous;
    StartOrder order;
    std::atomic<uint64_t> resident{0};
    std::atomic<uint64_t> ended{0};
    uint64_t traced_to = 0;  // trace time at which its clusters ended
};

// Runs clusters on the host's cores until none is left or one failed. A core runs one cluster to
// its end unless the cluster pauses or polls. Then the core takes another one, up to the number
// that the chip runs at once, so that clusters may wait for later ones. A search for races uses one
// core, and so do launches of several devices.
class Grid {
public:
    Grid(const Launch& launch, uint64_t most_workers, uint64_t most_resident)
        : most_workers_(std::min<uint64_t>(most_workers, launch.clusters())) {
        add(launch, std::max(most_resident, most_workers_), nullptr);
    }

    // Makes a grid for launches of several devices, which `add` adds.
    Grid() = default;

    // Adds a launch, which starts when the previous one of its stream has ended.
    const Lane* add(const Launch& launch, uint64_t most_resident, const Lane* previous) {
        const uint64_t window = std::min(kWindow, most_resident);
        lanes_.push_back(std::make_unique<Lane>(launch, most_resident, window, previous));
        window_ += window;
        return lanes_.back().get();
    }

    // Null if all went well.
    std::unique_ptr<OwnedReport> run() {
        if (first().launch.races) run_by(1);
        for (const auto& lane : lanes_) lane->launch.races = nullptr;
        if (!stop_.load() && has_unstarted()) run_by(most_workers_);
        return std::move(report_);
    }

private:
    void run_by(uint64_t workers) {
        workers_ = workers;
        stalls_.emplace(workers);
        std::vector<std::thread> others;
        for (uint64_t i = 1; i < workers; ++i) others.emplace_back([this, i] { work(i); });
        work(0);
        for (std::thread& other : others) other.join();
    }

    const Lane& first() const { return *lanes_.front(); }
    bool has_unstarted() const {
        return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
            return !lane->order.is_empty();
        });
    }
    // True if clusters wait for room on the chip, and not for the launch before theirs.
    bool lacks_room() const {
        return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
            return lane->may_start() && !lane->order.is_empty();
        });
    }

    // True if the search for races has ended. Then a cluster starts only if another waits for it.
    bool is_search_over() const { return first().launch.races && first().launch.races->is_over(); }

    struct Resident {
        Lane* lane;
        std::unique_ptr<Cluster> cluster;
        Halt halt = Halt::kNone;

        uint64_t index() const { return cluster->index(); }
    };

    // The resident clusters of one core.
    struct Residents {
        explicit Residents(Worker& worker) : worker(worker) {}

        Worker& worker;
        std::vector<Resident> running;  // sorted by index
        std::map<const Lane*, std::vector<std::unique_ptr<Cluster>>> ended;
        uint64_t rounds = 0;  // rounds in which all clusters polled
        uint64_t seen = 0;    // progress at the end of the last round
    };

    void work(uint64_t number) {
        const SignalMask mask;
        try {
            const Launch& launch = first().launch;
            Worker worker{*stalls_, {launch.policy, launch.seed + number}};
            run_clusters(worker);
        } catch (const std::bad_alloc&) {
            stop_.store(true);
            const std::lock_guard guard(lock_);
            if (!report_) report_ = std::make_unique<OwnedReport>(ReportKind::kMemory);
        }
        stalls_->leave();
    }

    void run_clusters(Worker& worker) {
        Residents residents(worker);
        CrashGuard guard;
        const Watchdog watchdog(
            first().launch.budget_seconds, worker.code, guard.site(), worker.progress, worker.watch,
            first().launch.stop
        );
        while (!stop_.load()) {
            const std::size_t next = pick(residents);
            if (next == kNone) return;
            if (next == kStuck) continue;
            Resident& resident = residents.running[next];
            resident.halt = resident.cluster->go_on(guard.site(), watchdog);
            if (resident.halt == Halt::kEnded) finish(residents, next);
        }
    }

    // --- which cluster runs ---

    static constexpr std::size_t kNone = SIZE_MAX;
    static constexpr std::size_t kStuck = SIZE_MAX - 1;

    std::size_t pick(Residents& residents) {
        if (const std::size_t ready = find(residents, Halt::kNone); ready != kNone) return ready;
        const std::vector<std::size_t> paused = all(residents, Halt::kPaused);
        if (paused.empty()) return pick_polling(residents);
        const bool has_room = residents.running.size() < window_ && !is_search_over();
        if (has_room && admit(residents)) {
            return find(residents, Halt::kNone);
        }
        if (residents.worker.choices.polls_again()) retry(residents);
        return paused[residents.worker.choices.paused(paused.size())];
    }

    // Called if all clusters poll, or none is resident.
    std::size_t pick_polling(Residents& residents) {
        if (residents.running.empty() && is_search_over()) return kNone;
        if (admit(residents)) return find(residents, Halt::kNone);
        if (residents.running.empty()) return kNone;
        if (is_stuck(residents)) {
            give_up(residents);
            return kStuck;
        }
        retry(residents);
        return 0;
    }

    static std::size_t find(const Residents& residents, Halt halt) {
        const auto& running = residents.running;
        const auto found = std::find_if(running.begin(), running.end(), [&](const auto& one) {
            return one.halt == halt;
        });
        return found == running.end() ? kNone : found - running.begin();
    }

    static std::vector<std::size_t> all(const Residents& residents, Halt halt) {
        std::vector<std::size_t> found;
        for (std::size_t i = 0; i < residents.running.size(); ++i) {
            if (residents.running[i].halt == halt) found.push_back(i);
        }
        return found;
    }

    static void retry(Residents& residents) {
        for (Resident& one : residents.running) {
            if (one.halt == Halt::kPolls) one.halt = Halt::kNone;
        }
    }

    // --- clusters come and go ---

    // Starts the next cluster of any launch that has one.
    bool admit(Residents& residents) {
        const std::size_t count = lanes_.size();
        const std::size_t start = count == 1 ? 0 : residents.worker.choices.paused(count);
        for (std::size_t i = 0; i < count; ++i) {
            if (admit(residents, *lanes_[(start + i) % count])) return true;
        }
        return false;
    }

    bool admit(Residents& residents, Lane& lane) {
        if (!lane.may_start()) return false;
        if (lane.resident.fetch_add(1) >= lane.most_resident) {
            lane.resident.fetch_sub(1);
            return false;
        }
        uint64_t index = 0;
        if (!lane.order.take(index)) {
            lane.resident.fetch_sub(1);
            return false;
        }
        if (lane.launch.history && lane.ended == 0 && lane.resident == 1) begin(lane);
        std::unique_ptr<Cluster> cluster;
        auto& ended = residents.ended[&lane];
        if (ended.empty()) {
            cluster = std::make_unique<Cluster>(lane.launch, residents.worker);
        } else {
            cluster = std::move(ended.back());
            ended.pop_back();
        }
        index += lane.launch.first_cluster;
        cluster->start(index);
        auto& running = residents.running;
        const auto after = std::find_if(running.begin(), running.end(), [&](const auto& one) {
            return one.index() > index;
        });
        running.insert(after, Resident{&lane, std::move(cluster)});
        residents.rounds = 0;
        return true;
    }

    // Orders the previous launch's accesses before this launch's.
    static void begin(Lane& lane) {
        if (!lane.previous) return;
        LaunchHistory& history = *lane.launch.history;
        const LaunchHistory& previous = *lane.previous->launch.history;
        for (const ClusterClocks* known : {&previous.before, &previous.after}) {
            history.before.join(*known);
        }
        lane.launch.begins_after = lane.previous->traced_to;
    }

    void finish(Residents& residents, std::size_t number) {
        Cluster& cluster = *residents.running[number].cluster;
        Lane& lane = *residents.running[number].lane;
        if (lane.launch.trace) {
            lane.launch.trace->take(*cluster.recorder());
            lane.traced_to = std::max(lane.traced_to, cluster.recorder()->time());
        }
        if (cluster.has_failed()) return keep(cluster, 0, {});
        residents.ended[&lane].push_back(std::move(residents.running[number].cluster));
        residents.running.erase(residents.running.begin() + static_cast<std::ptrdiff_t>(number));
        lane.resident.fetch_sub(1);
        ++lane.ended;
        retry(residents);
    }

    // --- the end of waiting ---

    // Polls in vain per thread, with nothing else going on, that end a pass: kMostPolls for one
    // cluster; several clusters share them, with at least kLeastPolls each.
    static constexpr uint64_t kMostPolls = 1 << 14;
    static constexpr uint64_t kLeastPolls = 1 << 8;
    // Rounds without progress that end the wait of a grid whose clusters cannot be resident at
    // once.
    static constexpr uint64_t kMostRounds = 64;

    // True if all clusters of this core poll in vain and no core can bring an answer.
    bool is_stuck(Residents& residents) {
        Worker& worker = residents.worker;
        if (residents.seen != worker.progress) residents.rounds = 0;
        residents.seen = worker.progress;
        ++residents.rounds;
        if (workers_ == 1 && lacks_room() && residents.rounds > kMostRounds) return true;
        const uint64_t polls = std::max(kLeastPolls, kMostPolls / residents.running.size());
        for (const Resident& one : residents.running) {
            if (!one.cluster->has_asked(polls)) return false;
        }
        for (Resident& one : residents.running) one.cluster->ask_again();
        if (stalls_->is_final(worker.stall)) return true;
        if (!stalls_->is_everyone_stalled()) {
            ++worker.progress;
            residents.seen = worker.progress;
            usleep(50);
        }
        return false;
    }

    void give_up(Residents& residents) {
        std::vector<const Cluster*> all;
        for (Resident& one : residents.running) {
            one.cluster->give_up();
            all.push_back(one.cluster.get());
        }
        if (lanes_.size() == 1) all.clear();
        for (Resident& one : residents.running) {
            const uint64_t resident = one.lane->order.is_empty() ? 0 : one.lane->resident.load();
            keep(*one.cluster, resident, all);
            if (one.lane->launch.trace) one.lane->launch.trace->take(*one.cluster->recorder());
        }
    }

    // Keeps the failure of the first cluster if several fail.
    void keep(
        const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others
    ) {
        stop_.store(true);
        const std::lock_guard guard(lock_);
        if (cluster.index() >= failed_) return;
        failed_ = cluster.index();
        report_ = Reporter(cluster, resident, others).take();
    }

    std::vector<std::unique_ptr<Lane>> lanes_;
    const uint64_t most_workers_ = 1;
    uint64_t workers_ = 0;
    uint64_t window_ = 0;
    std::atomic<bool> stop_{false};
    std::optional<Stalls> stalls_;
    std::mutex lock_;
    uint64_t failed_ = UINT64_MAX;
    std::unique_ptr<OwnedReport> report_;
};

}  // namespace tmaasync_emulate
