// Shared addresses of a thread, and remote accesses.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/faults.hpp"

namespace tmaasync_emulate {

struct Place {
    Cta* cta;
    uint32_t offset;
};

// Notes a remote access, which must be over before the CTA ends.
void note_remote(std::vector<Access>& noted, const Access& remote);

// The access that the thread, or its st.async, makes to a CTA's memory now.
Access remote_access(const Fiber& fiber);

// Resolves a shared address of this thread to a CTA and an offset.
Place locate(Fiber& fiber, uint32_t address);

// The offset of an address of .shared::cta. One without the bits of a rank is the CTA's own.
uint32_t own_offset(Fiber& fiber, uint32_t address);

// Resolves an address that the thread accesses, and notes an access to another CTA.
Place resolve(Fiber& fiber, uint32_t address);

inline uint32_t shared_end(const Fiber& fiber) {
    const Launch& launch = fiber.cluster->launch;
    if (fiber.cta->has_static_shared) return launch.dynamic_bytes() + launch.static_bytes;
    return launch.shared_bytes;
}

// The fault of an access beyond the CTA's shared memory; none if the bytes are the CTA's.
template <typename Name>
Reason beyond_shared(const Fiber& fiber, uint32_t offset, uint64_t bytes, const Name& what) {
    const uint32_t end = shared_end(fiber);
    if (offset + bytes <= end) return {};
    return {
        FaultKind::kReachesBeyondShared,
        what,
        shared_bytes_from(offset),
        offset + bytes,
        end,
        size_constant()
    };
}

template <typename Name>
void check_inside_shared(Fiber& fiber, uint32_t offset, uint64_t bytes, const Name& what) {
    const Reason reason = beyond_shared(fiber, offset, bytes, what);
    if (reason) fail(fiber, reason);
}

}  // namespace tmaasync_emulate
