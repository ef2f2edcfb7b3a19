// A thread of the host that runs clusters.
#pragma once

#include <cstdint>

#include "policy/cluster_choices.hpp"
#include "schedule/loops.hpp"
#include "schedule/stalls.hpp"

namespace tmaasync_emulate {

// State shared by the clusters of one host thread.
struct Worker {
    Stalls& stalls;
    ClusterChoices choices;
    Stalls::Mine stall{};
    // Number of completed phases, landed copies, executed wgmmas and ended threads.
    uint64_t progress = 0;
    Array code{};  // code of the cluster that runs
    LoopWatch watch{};

    // Called when a cluster does anything other than poll.
    void note_event() {
        if (stall.is_stalled) stalls.go_on(stall);
    }
};

}  // namespace tmaasync_emulate
