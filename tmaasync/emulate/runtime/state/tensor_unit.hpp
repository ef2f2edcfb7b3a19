// The state of a CTA's tensor memory and of the operations of tcgen05 in flight.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <tmaasync_emulate/tcgen05_calls.hpp>
#include <vector>

#include "races/tensor_races.hpp"
#include "shared_memory/tensor_memory.hpp"

namespace tmaasync_emulate {

struct Fiber;

// A tcgen05.alloc of a pair that waits for the other CTA's, or for columns.
struct PairRequest {
    bool is_open = false;
    bool is_granted = false;
    uint32_t columns = 0;
    uint32_t offset = 0;
    uint32_t warp = 0;
    uint32_t start = 0;
};

// The mbarrier of a commit.
struct TensorBarrier {
    uint32_t rank;
    uint32_t offset;
};

// One mma, cp, shift or commit in flight.
struct TensorOperation {
    enum class Kind : uint8_t { kMma, kCopy, kShift, kCommit } kind;
    Tcgen05Mma mma{};
    Tcgen05Copy copy{};
    uint32_t group = 1;
    uint32_t address = 0;                 // in tensor memory: the target of a shift
    std::vector<TensorBarrier> barriers;  // commits only
    Fiber* issuer = nullptr;
    uintptr_t site = 0;
    uint32_t sequence = kNothing;  // of an mma, in the trace
    IssuedTensor tensor;
    std::shared_ptr<const View> published;  // commits only
    std::shared_ptr<const Synced> synced;   // commits of a verified launch only
};

// The lane that issued an instruction of one thread, by its site.
struct IssuingLane {
    uintptr_t site;
    uint32_t warp;
    uint32_t lane;
};

// Tensor memory of a CTA, made when it is first allocated.
struct TensorUnit {
    std::unique_ptr<TensorMemory> memory;
    TensorColumns columns;
    uint32_t last_columns = 0;  // of the last allocation
    uintptr_t relinquished_at = 0;
    uint32_t group = 0;  // cta_group of the CTA's instructions; 0 before the first
    uintptr_t group_site = 0;
    PairRequest request;
    std::vector<Fiber*> waiters;  // lanes that wait for columns
    uint64_t changes = 0;         // counts the times when they were woken
    std::deque<TensorOperation> queue;
    std::vector<IssuingLane> issuers;
};

}  // namespace tmaasync_emulate
