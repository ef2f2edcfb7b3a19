// Cluster launch control: a thread asks for the work of a cluster that has not started.
//
// PTX ISA, "clusterlaunchcontrol.try_cancel" and "clusterlaunchcontrol.query_cancel". The response
// is laid out as ptxas reads it: x; y and z, of 16 bits each; bit 0 of the third word says whether
// there is a cluster.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

void request_cluster(Fiber& fiber, uint32_t response, uint32_t barrier, bool is_for_all);

bool has_cluster(Fiber& fiber, const uint32_t* response);

uint3 first_cta_of(Fiber& fiber, const uint32_t* response);

}  // namespace tmaasync_emulate
