// The report of a cluster that failed, as structs: Python writes the sentences.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "report/owned_report.hpp"
#include "state/cluster.hpp"

namespace tmaasync_emulate {

// The report of a failed cluster. `resident` clusters wait while others have not started; 0 if all
// have.
std::unique_ptr<OwnedReport> report_of(
    const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others
);

}  // namespace tmaasync_emulate
