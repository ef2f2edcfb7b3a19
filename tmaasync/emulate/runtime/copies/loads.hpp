// Copies into shared memory: their issue.
#pragma once

#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "state/fiber.hpp"

namespace tmaasync_emulate {

Flight flight_of(Fiber& fiber, const Box& box);

void prefetch(Fiber& fiber, const Flight& flight);

// The mbarrier that counts a load: it lies in the CTA that receives the bytes, or with a group of 2
// in either CTA of that one's pair.
struct Counting {
    uint32_t barrier;
    uint32_t cta_group = 1;
};

// Issues a load into this CTA, or into another by a mapa address.
void issue_load(Fiber& fiber, Flight flight, uint32_t shared, Counting counting);

// Issues a load to the same offset in every CTA of the mask.
void issue_multicast(
    Fiber& fiber, Flight flight, uint32_t shared, Counting counting, uint32_t cta_mask
);

// Issues a copy from this CTA's shared memory to another CTA's, or to its own.
void issue_push(Fiber& fiber, Flight flight, uint32_t from, uint32_t to, uint32_t barrier);

}  // namespace tmaasync_emulate
