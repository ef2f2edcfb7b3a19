// mbarriers: arrival counts, transaction counts, and phases by their full number.
#pragma once

#include <cstdint>

#include "memory/addresses.hpp"

namespace tmaasync_emulate {

constexpr int64_t kMaxTransactionBytes = (1 << 20) - 1;
constexpr uint32_t kMaxArrivals = (1 << 20) - 1;

inline uint64_t* barrier_word(const Cta& cta, uint32_t offset) {
    return reinterpret_cast<uint64_t*>(cta.window + offset);
}

// Returns null if there is no usable barrier; `reason` then names the cause.
Mbarrier* find_barrier(Cta& cta, uint32_t offset, Reason& reason);

Mbarrier& require_barrier(Fiber& fiber, Place place);

Event on_barrier(EventKind kind, const Cta& owner, const Mbarrier& barrier);

// Begins the next phase if no arrival and no byte is missing.
void complete_phase(Cluster& cluster, const Cta& owner, Mbarrier& barrier);

void note_arrival(const Fiber& fiber, Mbarrier& barrier, uintptr_t site);

void init_barrier(Fiber& fiber, uint32_t address, uint32_t count);

void invalidate_barrier(Fiber& fiber, uint32_t address);

// The reason of the fault if the transaction count overflows; else empty.
Reason overflow_of(const Mbarrier& barrier);

// PTX ISA, mbarrier.arrive: with .noComplete an arrival that completes the phase is undefined.
void check_completes_nothing(Fiber& fiber, uint32_t address, uint32_t count);

// "1 arrival" or "128 arrivals".
Reason number_of_arrivals(uint32_t count);

Reason too_many_arrivals(const Mbarrier& barrier, uint32_t count);

// Expects bytes, then arrives. Returns the state token, which is the number of the phase.
uint64_t arrive(Fiber& fiber, uint32_t address, uint32_t count, uint32_t bytes, bool releases);

// Arrives, and lowers the arrival count of all later phases.
uint64_t arrive_and_drop(Fiber& fiber, uint32_t address, uint32_t count, bool releases);

void expect_bytes(Fiber& fiber, uint32_t address, uint32_t bytes);

void deliver_bytes(Fiber& fiber, uint32_t address, uint32_t bytes);

// st.async and red.async, which the emulator executes at once. A thread that waits for the phase
// sees the stored bytes, and no other access of the storing thread.
void begin_async_store(Fiber& fiber, uint32_t address);

void end_async_store(Fiber& fiber, uint32_t address, uint32_t bytes);

}  // namespace tmaasync_emulate
