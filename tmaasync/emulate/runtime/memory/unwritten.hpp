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

// Says that a phase ended before all of its copies had landed, because it expected too few bytes.
Reason early_phase(
    const Cluster& cluster, const Cta& owner, const Mbarrier& barrier, uint64_t phase
);

// Says so of the phase that counts a copy in flight; empty if the phase has not ended.
Reason ended_early(const Cluster& cluster, const Flight& flight);

// The last wait of a thread, before an access of this order, on an mbarrier that counts loads or
// on one that counts none. Null if it has waited on none.
const EndedWait* last_wait(const Fiber& fiber, uint32_t order, bool counts_loads);

const Mbarrier* barrier_of(const Cta& cta, uint32_t offset);

// The first mbarrier in use that has some of the bytes; null if none has.
const Mbarrier* barrier_in(const Cta& cta, uint32_t offset, uint32_t bytes);

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
