// The report of a cluster that failed, as structs: Python writes the sentences.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi.hpp"
#include "reason.hpp"
#include "state/cluster.hpp"

namespace tmaasync_emulate {

// A report and everything that it points to.
struct OwnedReport : Report {
    explicit OwnedReport(ReportKind its_kind) : Report{} { kind = its_kind; }
    OwnedReport(const OwnedReport&) = delete;
    OwnedReport& operator=(const OwnedReport&) = delete;

    const char* keep(const char* text) { return texts_.emplace_back(text).c_str(); }
    Numbers keep(std::vector<uint32_t> values) {
        const auto& kept = numbers_.emplace_back(std::move(values));
        return {kept.data(), kept.size()};
    }

    // Point to the lists, once they are complete.
    void close() {
        fault = reason.kind();
        mentions = reason.mentions().size();
        mention = reason.mentions().data();
        texts = reason.texts().data();
        callers = all_callers.size();
        caller = all_callers.data();
        waits = all_waits.size();
        wait = all_waits.data();
        warps = all_warps.size();
        warp = all_warps.data();
        barriers = all_barriers.size();
        barrier = all_barriers.data();
    }

    Reason reason;
    std::vector<uint64_t> all_callers;
    std::vector<WaitReport> all_waits;
    std::vector<WarpReport> all_warps;
    std::vector<BarrierReport> all_barriers;

private:
    std::deque<std::string> texts_;
    std::deque<std::vector<uint32_t>> numbers_;
};

// The report of a failed cluster. `resident` clusters wait while others have not started; 0 if all
// have.
std::unique_ptr<OwnedReport> report_of(
    const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others
);

}  // namespace tmaasync_emulate
