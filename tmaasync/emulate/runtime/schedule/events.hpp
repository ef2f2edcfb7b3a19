// Events of the trace. Without a recorder these functions do nothing.
#pragma once

#include <cstdint>

#include "state/cluster.hpp"

namespace tmaasync_emulate {

void add_event(const Cluster& cluster, const Fiber& fiber, Event event);
void add_event(const Cluster& cluster, const Cta& cta, Event event);

// Records an event of a thread.
inline void record(const Fiber& fiber, const Event& event) {
    if (fiber.cluster->recorder) add_event(*fiber.cluster, fiber, event);
}

// Records an event that no thread caused.
inline void record(const Cluster& cluster, const Cta& cta, const Event& event) {
    if (cluster.recorder) add_event(cluster, cta, event);
}

// All lanes of a warp do the same, so the first live lane stands for all. A lane may end before the
// others go on, so callers ask before a wait.
inline bool stands_for_warp(const Fiber& fiber) {
    return fiber.cluster->recorder &&
           fiber.lane == static_cast<uint32_t>(__builtin_ctz(fiber.warp->live_lanes));
}

inline void record_role(const Fiber& fiber) {
    if (Recorder* recorder = fiber.cluster->recorder.get()) {
        recorder->add_role(fiber.rank, fiber.index / 32, fiber.warp->role);
    }
}

inline uint32_t new_sequence(Cluster& cluster) {
    return cluster.recorder ? cluster.recorder->new_sequence() : kNothing;
}

}  // namespace tmaasync_emulate
