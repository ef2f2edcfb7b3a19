// The names of threads, CTAs and copies in messages.
#pragma once

#include <cstdint>

#include "state/cta.hpp"

namespace tmaasync_emulate {

// Names a CTA other than the thread's own: " of CTA 1 of the cluster".
Words of_cta(const Fiber& fiber, const Cta& cta);

// Names an issuer: "producer (thread 0) at kernel.cu:30".
Words name_of_issuer(const Fiber& issuer, uintptr_t site);

// Names an issuer, and its CTA if that differs from `other`'s.
Words name_of_issuer(const Fiber& issuer, uintptr_t site, const Fiber& other);

Words name_of(const Deed& deed);

Words name_of(const Flight& flight);

// Number of the thread's warp in the cluster.
uint32_t warp_number(const Fiber& fiber);

}  // namespace tmaasync_emulate
