// The state of a CUDA thread, which runs as a fiber.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "host/context.hpp"
#include "policy/choices.hpp"
#include "state/copies.hpp"
#include "state/warp.hpp"
#include "state/warpgroup.hpp"
#include "trace/recorder.hpp"

namespace tmaasync_emulate {

struct Cluster;
struct Cta;

struct Wait {
    using Kind = WaitKind;
    Kind kind = Kind::kNone;
    const char* instruction = "";
    const Cta* cta = nullptr;  // CTA of the barrier
    uint32_t number = 0;  // shared offset of an mbarrier, or number of a named barrier or signal
    uint32_t parity = 0;
    bool acquires = true;
    // The signal's owner, and its awaited and last seen epochs.
    uint32_t rank = 0;
    uint32_t epoch = 0;
    uint32_t seen = 0;
    uintptr_t polled = 0;                  // address that the thread polls
    Activity activity = Activity::kReady;  // where the instruction is empty
};

// A volatile access with a scope narrower than the system.
struct NarrowAccess {
    uintptr_t address = 0;
    Scope scope = Scope::kSystem;
};

// The registers of a thread's wgmmas: accumulators, or A, which the thread may read meanwhile.
struct Accumulators {
    uintptr_t start;
    uintptr_t end;
    bool is_a = false;
    Epoch epoch = 0;  // the last group that uses them
    uintptr_t site = 0;
    bool is_touched = false;
    uintptr_t touched_at = 0;
};

// Previous bytes of a store, to tell whether two lanes stored different values.
struct Repeat {
    const uint8_t* at;
    uint32_t bytes;
    std::array<uint8_t, 16> held;
    Race race;
};

// A thread among the lanes of its warp.
struct InWarp {
    uintptr_t met_at = 0;  // site of its last instruction with a mask, and the mask
    uint32_t met_mask = 0;
    uintptr_t active_site = 0;  // site of the __activemask() that it executes
    uint32_t active_lanes = 0;  // result of __activemask(), once it is known
};

// The facts about a thread that the race detector needs.
struct ThreadRaces {
    Agent bulk_reads = kNoAgent;
    Agent bulk_writes = kNoAgent;
    Agent copies = kNoAgent;
    // For st.async: the mbarrier's agent, and the phase that counts the bytes.
    Agent async_store = kNoAgent;
    Epoch async_store_epoch = 0;
    std::vector<Accumulators> accumulators;
    std::unique_ptr<Repeat> repeat;
};

// A wait of a thread on an mbarrier that has ended.
struct EndedWait {
    static constexpr uint64_t kNoPhase = UINT64_MAX;  // a new barrier's wait for parity 1

    const Cta* cta;
    uint32_t barrier;
    uint64_t phase;
    uint32_t order;  // among the accesses of all threads; 0 without a detector
    uintptr_t site;

    bool is_on(const Cta& owner, uint32_t offset) const {
        return cta == &owner && barrier == offset;
    }
};

// The mbarrier and the phase in which a thread has expected bytes since its last wait.
struct ExpectedPhase {
    const Cta* cta = nullptr;
    uint32_t barrier = 0;
    uint64_t phase = 0;
};

// The past of a thread at mbarriers, for reports.
struct BarrierPast {
    std::vector<EndedWait> waits;  // the last ones
    ExpectedPhase expected;
};

// The events of a thread that have begun in the trace and not ended.
struct ThreadTrace {
    bool is_at_cluster = false;
    AwaitedPhase wait;
};

struct Fiber : Thread {
    Context context{};
    Cluster* cluster = nullptr;
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    Warpgroup* warpgroup = nullptr;
    uint32_t index = 0;
    uint32_t number = 0;  // index in the cluster
    uintptr_t site = 0;   // site of its last call of the runtime
    bool is_done = false;
    Wait wait;
    Priority priority = Priority::kUsual;
    uint64_t asked_in_vain = UINT64_MAX;  // the cluster's progress at its last poll
    bool has_arrived_at_cluster = false;
    bool has_arrived_at_grid = false;
    uint32_t votes = 0;  // number of votes that it has taken part in
    std::size_t register_changes = 0;
    NarrowAccess narrow_access;
    InWarp in_warp;
    BulkStores stores;
    ThreadCopies copies;
    ThreadMmas mmas;
    ThreadRaces races;
    ThreadTrace trace;
    BarrierPast past;
};

inline Fiber& current_fiber() {
    return static_cast<Fiber&>(current_thread());
}

}  // namespace tmaasync_emulate
