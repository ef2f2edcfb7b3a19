// Reads of shared memory that nothing has written.
#pragma once

#include <cstdint>

#include "races/detector.hpp"
#include "state/cta.hpp"

namespace tmaasync_emulate {

inline bool overlaps(uint32_t a, uint32_t a_bytes, uint32_t b, uint32_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

// Names a wait that explains why a copy is still in flight: a try_wait that returned false and was
// not repeated, or a wait for parity 1 in a barrier's first phase, which returns at once.
Reason wrong_wait(const Fiber& reader, const Cta& cta, uint32_t offset);

// Says that a phase ended while a copy that it counts was in flight, because it expected too few
// bytes; empty if it did not.
Reason ended_early(const Cluster& cluster, const Flight& flight);

// The remedy where a thread, wgmma or TMA reads bytes that nothing has written.
Reason remedy_for_unwritten(
    const Fiber& reader, const Cta& cta, uint32_t offset, uint32_t bytes, FaultKind otherwise
);

// Called before a read: shared memory holds nothing until it is written. If the bytes are written
// meanwhile, the access itself reports a race.
void check_is_written(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes);

// The first contiguous run of unwritten bytes in a range.
struct Unwritten {
    uint32_t offset = 0;
    uint32_t bytes = 0;
};

Unwritten unwritten_part(Detector& detector, uint32_t rank, uint32_t offset, uint32_t bytes);

}  // namespace tmaasync_emulate
