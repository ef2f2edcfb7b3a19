// The names of threads, CTAs and copies in messages.
#pragma once

#include <cstdint>

#include "state/cta.hpp"

namespace tmaasync_emulate {

// Names a CTA other than the thread's own: " of CTA 1 of the cluster".
Reason of_cta(const Fiber& fiber, const Cta& cta);

// The line of a site in the kernel of the thread.
Mention line_of(const Fiber& fiber, uintptr_t site);

// Names an issuer: "producer (thread 0) at kernel.cu:30".
Reason name_of(const Issuer& issuer);

// Names an issuer, and its CTA if that differs from `other`'s.
Reason name_of(const Issuer& issuer, const Fiber& other);

Operation operation_of(const Flight& flight);

inline Mention name_of(Operation operation) {
    return {static_cast<uint64_t>(operation), MentionKind::kOperation};
}

// "a TMA load"
inline Reason copy_by(Operation operation) {
    return {FaultKind::kCopy, name_of(operation)};
}

// Number of the thread's warp in the cluster.
uint32_t warp_number(const Fiber& fiber);

}  // namespace tmaasync_emulate
