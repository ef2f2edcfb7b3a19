#include "launch/grid.hpp"

#include "launch/deadlock.hpp"
#include "launch/run.hpp"
#include "report/report.hpp"
#include "tensor_memory/allocation.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

const Lane* Grid::add(const Launch& launch, uint64_t most_resident, const Lane* previous) {
    const uint64_t window = std::min(kWindow, most_resident);
    lanes_.push_back(std::make_unique<Lane>(launch, most_resident, window, previous));
    window_ += window;
    return lanes_.back().get();
}

std::unique_ptr<OwnedReport> Grid::run() {
    if (first().launch.races) run_by(1);
    for (const auto& lane : lanes_) lane->launch.races = nullptr;
    if (!stop_.load() && has_unstarted()) run_by(most_workers_);
    if (!stuck_.empty()) unless_memory_lacks([this] { report_stuck(); });
    return std::move(report_);
}

void Grid::run_by(uint64_t workers) {
    workers_ = workers;
    stalls_.emplace(workers);
    std::vector<std::thread> others;
    for (uint64_t i = 1; i < workers; ++i) others.emplace_back([this, i] { work(i); });
    work(0);
    for (std::thread& other : others) other.join();
}

bool Grid::has_unstarted() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
        return !lane->order.is_empty();
    });
}

bool Grid::lacks_room() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
        return lane->may_start() && !lane->order.is_empty();
    });
}

void Grid::work(uint64_t number) {
    const SignalMask mask;
    unless_memory_lacks([this, number] {
        const Launch& launch = first().launch;
        Worker worker{*stalls_, {launch.policy, launch.seed + number}};
        run_clusters(worker);
    });
    stalls_->leave();
}

template <typename Act>
void Grid::unless_memory_lacks(const Act& act) {
    try {
        act();
    } catch (const std::bad_alloc&) {
        stop_.store(true);
        const std::lock_guard guard(lock_);
        if (!report_) report_ = std::make_unique<OwnedReport>(ReportKind::kMemory);
    }
}

void Grid::run_clusters(Worker& worker) {
    Residents residents(worker);
    CrashGuard guard;
    const Watchdog watchdog(
        first().launch.budget_seconds, worker.code, guard.site(), worker.progress, worker.watch,
        first().launch.stop
    );
    while (!stop_.load()) {
        const std::size_t next = pick(residents);
        if (next == kNone) break;
        Resident& resident = residents.running[next];
        resident.halt = go_on(*resident.cluster, guard.site(), watchdog);
        if (resident.halt == Halt::kEnded) finish(residents, next);
    }
    if (gives_up_.load()) give_up(residents);
}

std::size_t Grid::pick(Residents& residents) {
    if (const std::size_t ready = find(residents, Halt::kNone); ready != kNone) return ready;
    const std::vector<std::size_t> paused = all(residents, Halt::kPaused);
    if (paused.empty()) return pick_polling(residents);
    // In a verified launch a request for a cluster finds as many as can be: refusing it stands for
    // a cluster that has started.
    const bool may_start = !first().launch.order && residents.running.size() < window_;
    const bool has_room = may_start && !is_search_over();
    if (has_room && admit(residents)) {
        return find(residents, Halt::kNone);
    }
    if (residents.worker.choices.polls_again()) retry(residents);
    return paused[residents.worker.choices.paused(paused.size())];
}

std::size_t Grid::pick_polling(Residents& residents) {
    if (residents.running.empty() && is_search_over()) return kNone;
    if (admit(residents)) return find(residents, Halt::kNone);
    if (residents.running.empty()) return kNone;
    if (is_stuck(residents)) {
        SyncOrder* const order = first().launch.order;
        if (!order || !order->give_up_one()) {
            gives_up_.store(true);
            stop_.store(true);
            return kNone;
        }
        residents.rounds = 0;
    }
    retry(residents);
    return 0;
}

std::size_t Grid::find(const Residents& residents, Halt halt) {
    const auto& running = residents.running;
    const auto found = std::find_if(running.begin(), running.end(), [&](const auto& one) {
        return one.halt == halt;
    });
    return found == running.end() ? kNone : found - running.begin();
}

std::vector<std::size_t> Grid::all(const Residents& residents, Halt halt) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < residents.running.size(); ++i) {
        if (residents.running[i].halt == halt) found.push_back(i);
    }
    return found;
}

void Grid::retry(Residents& residents) {
    for (Resident& one : residents.running) {
        if (one.halt == Halt::kPolls) one.halt = Halt::kNone;
    }
}

bool Grid::admit(Residents& residents) {
    const std::size_t count = lanes_.size();
    const std::size_t start = count == 1 ? 0 : residents.worker.choices.paused(count);
    for (std::size_t i = 0; i < count; ++i) {
        if (admit(residents, *lanes_[(start + i) % count])) return true;
    }
    return false;
}

bool Grid::admit(Residents& residents, Lane& lane) {
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
    start(*cluster, index);
    if (lane.sm_columns) cluster->first_sm = lane.sm_columns->enter();
    auto& running = residents.running;
    const auto after = std::find_if(running.begin(), running.end(), [&](const auto& one) {
        return one.index() > index;
    });
    running.insert(after, Resident{&lane, std::move(cluster)});
    residents.rounds = 0;
    return true;
}

void Grid::begin(Lane& lane) {
    if (!lane.previous) return;
    LaunchHistory& history = *lane.launch.history;
    const LaunchHistory& previous = *lane.previous->launch.history;
    for (const ClusterClocks* known : {&previous.before, &previous.after}) {
        history.before.join(*known);
    }
    lane.launch.begins_after = lane.previous->traced_to;
    if (SyncOrder* order = lane.launch.order)
        order->begin_after(lane.previous->launch, lane.launch);
}

void Grid::finish(Residents& residents, std::size_t number) {
    Cluster& cluster = *residents.running[number].cluster;
    Lane& lane = *residents.running[number].lane;
    if (lane.launch.trace) {
        lane.launch.trace->take(*cluster.recorder);
        lane.traced_to = std::max(lane.traced_to, cluster.recorder->time());
    }
    if (cluster.has_failed()) return keep(cluster, 0, {});
    if (lane.sm_columns) lane.sm_columns->leave(cluster.first_sm);
    residents.ended[&lane].push_back(std::move(residents.running[number].cluster));
    residents.running.erase(residents.running.begin() + static_cast<std::ptrdiff_t>(number));
    lane.resident.fetch_sub(1);
    ++lane.ended;
    retry(residents);
}

bool Grid::is_stuck(Residents& residents) {
    Worker& worker = residents.worker;
    if (residents.seen != worker.progress) residents.rounds = 0;
    residents.seen = worker.progress;
    ++residents.rounds;
    if (workers_ == 1 && lacks_room() && residents.rounds > kMostRounds) return true;
    const uint64_t polls = std::max(kLeastPolls, kMostPolls / residents.running.size());
    for (const Resident& one : residents.running) {
        if (!has_asked(*one.cluster, polls)) return false;
    }
    for (Resident& one : residents.running) one.cluster->turns.vain = 0;
    if (stalls_->is_final(worker.stall)) return true;
    if (!stalls_->is_everyone_stalled()) {
        ++worker.progress;
        residents.seen = worker.progress;
        usleep(50);
    }
    return false;
}

void Grid::give_up(Residents& residents) {
    const std::lock_guard guard(lock_);
    for (Resident& one : residents.running) {
        report_deadlock(*one.cluster);
        stuck_.push_back(std::move(one));
    }
}

void Grid::report_stuck() {
    std::sort(stuck_.begin(), stuck_.end(), [](const Resident& one, const Resident& other) {
        return one.index() < other.index();
    });
    std::vector<const Cluster*> all;
    for (const Resident& one : stuck_) all.push_back(one.cluster.get());
    for (const Resident& one : stuck_) {
        const uint64_t resident = one.lane->order.is_empty() ? 0 : one.lane->resident.load();
        keep(*one.cluster, resident, all);
        if (one.lane->launch.trace) one.lane->launch.trace->take(*one.cluster->recorder);
    }
}

void Grid::keep(
    const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others
) {
    stop_.store(true);
    const std::lock_guard guard(lock_);
    const uint64_t order = waits_for_columns_of_another(cluster) ? 0 : cluster.index + 1;
    if (order >= failed_) return;
    failed_ = order;
    report_ = report_of(cluster, resident, others);
}

}  // namespace tmaasync_emulate
