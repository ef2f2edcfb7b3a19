// The clusters of a grid, and the choice of the resident cluster that runs next.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "policy/start_order.hpp"
#include "report/report.hpp"
#include "schedule/worker.hpp"
#include "shared_memory/sm_columns.hpp"
#include "state/cluster.hpp"

namespace tmaasync_emulate {

// A launch of a grid of launches. It starts when another one, of the same stream, has ended.
struct Lane {
    Lane(const Launch& launch, uint64_t most_resident, uint64_t window, const Lane* previous)
        : launch(launch),
          most_resident(most_resident),
          previous(previous),
          order(launch.clusters(), window, {launch.policy, launch.seed + launch.number}) {
        this->launch.unstarted = &order;
        const uint32_t ctas = launch.cluster_ctas();
        if (!launch.shares_columns || launch.clusters() * ctas <= launch.sms) return;
        sm_columns = std::make_unique<SmColumns>(launch.sms, ctas);
        this->launch.sm_columns = sm_columns.get();
    }

    bool may_start() const { return !previous || previous->is_over(); }
    bool is_over() const { return ended + order.cancelled() == launch.clusters(); }

    Launch launch;
    const uint64_t most_resident;
    const Lane* previous;
    StartOrder order;
    std::unique_ptr<SmColumns> sm_columns;
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
    const Lane* add(const Launch& launch, uint64_t most_resident, const Lane* previous);

    // Null if all went well.
    std::unique_ptr<OwnedReport> run();

private:
    void run_by(uint64_t workers);

    const Lane& first() const { return *lanes_.front(); }
    bool has_unstarted() const;
    // True if clusters wait for room on the chip, and not for the launch before theirs.
    bool lacks_room() const;

    // True if the search for races has ended. Then a cluster starts only if another waits for it.
    bool is_search_over() const { return first().launch.races && first().launch.races->is_over(); }

    struct Resident {
        Lane* lane;
        std::unique_ptr<Cluster> cluster;
        Halt halt = Halt::kNone;

        uint64_t index() const { return cluster->index; }
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

    void work(uint64_t number);

    // Reports that the host has no memory left, if so.
    template <typename Act>
    void unless_memory_lacks(const Act& act);

    void run_clusters(Worker& worker);

    // --- which cluster runs ---

    static constexpr std::size_t kNone = SIZE_MAX;

    std::size_t pick(Residents& residents);

    // Called if all clusters poll, or none is resident.
    std::size_t pick_polling(Residents& residents);

    static std::size_t find(const Residents& residents, Halt halt);

    static std::vector<std::size_t> all(const Residents& residents, Halt halt);

    static void retry(Residents& residents);

    // --- clusters come and go ---

    // Starts the next cluster of any launch that has one.
    bool admit(Residents& residents);

    bool admit(Residents& residents, Lane& lane);

    // Orders the previous launch's accesses before this launch's.
    static void begin(Lane& lane);

    void finish(Residents& residents, std::size_t number);

    // --- the end of waiting ---

    // Polls in vain per thread, with nothing else going on, that end a pass: kMostPolls for one
    // cluster; several clusters share them, with at least kLeastPolls each.
    static constexpr uint64_t kMostPolls = 1 << 14;
    static constexpr uint64_t kLeastPolls = 1 << 8;
    // Rounds without progress that end the wait of a grid whose clusters cannot be resident at
    // once.
    static constexpr uint64_t kMostRounds = 64;

    // True if all clusters of this core poll in vain and no core can bring an answer.
    bool is_stuck(Residents& residents);

    // Called on every core once the grid is stuck.
    void give_up(Residents& residents);

    void report_stuck();

    // Keeps the failure of the first cluster if several fail. A wait for columns of tensor memory
    // that another cluster holds comes first: it explains the other waits.
    void keep(const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others);

    std::vector<std::unique_ptr<Lane>> lanes_;
    const uint64_t most_workers_ = 1;
    uint64_t workers_ = 0;
    uint64_t window_ = 0;
    std::atomic<bool> stop_{false};
    std::atomic<bool> gives_up_{false};
    std::optional<Stalls> stalls_;
    std::mutex lock_;
    std::vector<Resident> stuck_;  // the clusters of all cores, none of which can go on
    uint64_t failed_ = UINT64_MAX;
    std::unique_ptr<OwnedReport> report_;
};

}  // namespace tmaasync_emulate
