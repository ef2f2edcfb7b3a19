// CTA pairs, and the cta_group of a CTA's instructions.
#pragma once

#include <cstdint>

#include "schedule/faults.hpp"

namespace tmaasync_emulate {

// The other CTA of a pair: its rank differs in the last bit.
inline Cta& peer_of(Cluster& cluster, const Cta& cta) {
    return cluster.ctas[cta.rank ^ 1];
}

// Checks that all instructions of the CTA have one cta_group, and that a pair is there.
void check_group(Fiber& fiber, const char* instruction, uint32_t group);

// Checks too that the other CTA of a pair runs.
void check_running_group(Fiber& fiber, const char* instruction, uint32_t group);

}  // namespace tmaasync_emulate
