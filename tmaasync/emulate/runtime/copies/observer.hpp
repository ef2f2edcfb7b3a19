// The accesses of asynchronous copies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "memory/accesses.hpp"
#include "memory/unwritten.hpp"
#include "schedule/faults.hpp"

namespace tmaasync_emulate {

// Thrown when a copy reads shared memory that nothing has written, or an mbarrier; holds the first
// of these bytes.
struct WrongSource {
    uint32_t offset;
    uint32_t bytes;
    bool is_barrier = false;
};

// Receives the accesses that the TMA engine reports for one copy.
class CopyObserver {
public:
    CopyObserver(Cluster& cluster, uint32_t rank, const Actor* shared, const Actor* global)
        : cluster_(cluster), rank_(rank), shared_(shared), global_(global) {}

    void shared(uint32_t offset, uint32_t bytes, bool writes) {
        if (shared_) cluster_.detector->shared(*shared_, rank_, offset, bytes, writes);
    }

    void global(const void* pointer, uint64_t bytes, bool writes) {
        if (!global_) return;
        const auto address = reinterpret_cast<uintptr_t>(pointer);
        if (writes) keep_before_write(cluster_, address, bytes);
        cluster_.detector->global(*global_, address, bytes, writes);
    }

    // Checks a unit that TMA reads. Without a detector, a partly written unit goes unnoticed.
    void source(const uint8_t* window, uint32_t offset, uint32_t bytes) const {
        if (is_poison(poison_, window, offset)) return break_rule({offset, bytes});
        if (!shared_) return;
        const auto rank = static_cast<uint32_t>(
            (reinterpret_cast<uintptr_t>(window) - cluster_.windows()) / kWindowStride
        );
        const Unwritten found = unwritten_part(*cluster_.detector, rank, offset, bytes);
        if (found.bytes) break_rule({found.offset, found.bytes});
        const Mbarrier* const barrier = barrier_in(cluster_.ctas[rank], offset, bytes);
        if (barrier) break_rule({barrier->offset, 8, true});
    }

    // Rows are read in whole units, so up to 15 bytes beyond the last element are not checked.
    bool is_inside(const void* pointer, uint64_t bytes) const {
        const auto start = reinterpret_cast<uintptr_t>(pointer);
        const uint64_t unread = std::min<uint64_t>(bytes, kUnitBytes) - 1;
        return cluster_.launch.memory.may_hold(start, bytes - unread);
    }

private:
    void break_rule(const WrongSource& source) const {
        const uintptr_t site = shared_ ? shared_->site : cluster_.running->site;
        const FaultKind kind =
            source.is_barrier ? FaultKind::kSourceOverMbarrier : FaultKind::kUnwrittenSource;
        if (!is_pardoned(*cluster_.running, kind, site)) throw source;
    }

    Cluster& cluster_;
    uint32_t rank_;
    const Actor* shared_;
    const Actor* global_;
    const PoisonedWindow& poison_ = poisoned_window();
};

Reason reason_of_source(const Fiber& issuer, const WrongSource& source, Operation operation);

// Turns a fault of the TMA engine into the end of the launch, once the exception is handled.
template <typename Act>
void or_fail(Fiber& fiber, Act act) {
    try {
        return act();
    } catch (const Fault& fault) {
        report_fault(fiber, fault.reason, fault.site ? fault.site : fiber.site);
    }
    fail(fiber, {});
}

}  // namespace tmaasync_emulate
