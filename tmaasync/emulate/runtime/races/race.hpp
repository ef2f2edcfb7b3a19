// A race, and the accesses that make it.
#pragma once

#include <cstdint>
#include <memory>

#include "races/shadow.hpp"
#include "races/view.hpp"

namespace tmaasync_emulate {

struct RacedPlace {
    Space space;
    uint32_t rank;    // CTA of the shared memory
    uintptr_t start;  // offset or address of the cell
};

struct Race {
    Access first;
    Access second;
    RacedPlace place;
    bool lacks_proxy_fence = false;  // only a proxy fence is missing
    // Facts for the remedy: nothing had written the second access's bytes; the first access is a
    // store that its thread has waited for; only a relaxed arrival follows it.
    bool was_unwritten = false;
    bool is_stored = false;
    bool has_relaxed_arrival = false;
    // Facts for the remedy between devices: acquire and release at system scope order the accesses
    // (`is_known`). Then a proxy fence is missing, of the reader or of the writer.
    bool is_between_devices = false;
    bool is_known = false;
    bool lacks_acquire = false;
    bool lacks_reader_fence = false;
    // Facts for the remedy in tensor memory: a barrier orders the accesses, and a fence of tcgen05
    // is missing before or after it; or the first access was issued before the second.
    bool lacks_tensor_before = false;
    bool lacks_tensor_after = false;
    bool is_issued_before = false;
    Rule rule = Rule::kNone;  // that a launch may relax
};

// The rule that a race breaks, if a launch may relax it.
Rule rule_of(const Race& race);

// True for a store whose value can be compared afterwards.
inline bool is_comparable(Operation operation) {
    return operation == Operation::kWrite || operation == Operation::kStmatrix;
}

// The agent that makes an access, and the accesses that happen before.
struct Actor {
    Agent agent;
    Epoch epoch;
    uint32_t thread;
    uintptr_t site;
    uint32_t order;
    Operation operation;
    const View* view;
    bool is_async;
    bool is_system = false;
    bool may_repeat = false;  // a store whose value is compared afterwards
    uint8_t pattern = 0;      // loads through a tensor map only: 1 + the swizzle
};

// A copy or wgmma that a thread issued. It happens after all that happened before its issue.
struct Issued {
    uint32_t thread = 0;
    uintptr_t site = 0;
    uint32_t order = 0;
    std::shared_ptr<const View> after;  // null without a detector

    Actor as(Agent agent, Epoch epoch, Operation operation) const {
        return {agent, epoch, thread, site, order, operation, after.get(), true};
    }
};

}  // namespace tmaasync_emulate
