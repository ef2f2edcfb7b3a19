// A cluster from its start to its end: the scheduler's loop resumes threads and lands copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "crash/watchdog.hpp"
#include "state/cluster.hpp"

namespace tmaasync_emulate {

// Starts the cluster of this index, with all of its state as the chip finds it.
void start(Cluster& cluster, uint64_t index);

// Runs until every thread has ended, something failed, or another cluster has to run first.
Halt go_on(Cluster& cluster, CrashSite& site, const Watchdog& watchdog);

// True if each thread that can run has polled this often and nothing else has happened.
inline bool has_asked(const Cluster& cluster, std::size_t times) {
    return cluster.turns.vain > times * cluster.ready.size();
}

}  // namespace tmaasync_emulate
