// An event that synchronises threads, and the operations that happen before it.
#pragma once

#include "abi.hpp"
#include "races/clocks.hpp"

namespace tmaasync_emulate {

struct Synced {
    SyncEvent event;
    Clock before;
};

inline bool is_same(const SyncEvent& a, const SyncEvent& b) {
    return a.kind == b.kind && a.owner == b.owner && a.number == b.number && a.barrier == b.barrier;
}

// True if the event is an operation that happens before. Only a wait shows that a load has landed.
inline bool is_known(const Clock& known, const SyncEvent& event) {
    if (event.kind != SyncKind::kOperation) return false;
    return known.at(static_cast<Agent>(event.owner)) >= event.number;
}

inline bool is_before(const SyncEvent& event, const Synced& later) {
    const bool is_own = event.owner == later.event.owner && event.kind == SyncKind::kOperation;
    return is_own || is_known(later.before, event);
}

// Publishes an event, and what happens before it.
inline void join(Clock& target, const Synced& synced) {
    target.join(synced.before);
    target.raise(static_cast<Agent>(synced.event.owner), static_cast<Epoch>(synced.event.number));
}

}  // namespace tmaasync_emulate
