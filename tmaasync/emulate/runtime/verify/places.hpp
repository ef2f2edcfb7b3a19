// The accesses of a word at which threads synchronise, in a verified launch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>
#include <utility>
#include <vector>

#include "state/synced.hpp"

namespace tmaasync_emulate {

using Events = std::vector<SyncEvent>;

uint64_t hash_of(uint64_t a, uint64_t b, uint64_t c, uint64_t d);

// The effect of an access at which threads synchronise. A post reads and writes a signal, whose
// epoch it increases.
enum class SyncAccess : uint8_t { kRead, kWrite, kReadAndWrite, kPost };

// An atomic operation whose order among others with its number is no matter, because its thread
// does not use the result, or, for a counter, as long as all of them return the same (conditional
// independence: Katz and Peled, "Defining Conditional Independence Using Collapses", 1992).
struct Commuting {
    uint64_t operation = 0;  // 0: none
    Count count = {};
};

struct Touch {
    SyncAccess access;
    Commuting reduction;
    uint64_t value;  // of a counter, before

    bool reduces() const { return reduction.operation != 0; }
    bool counts() const { return reduction.count.addend != 0; }
    bool writes() const { return access != SyncAccess::kRead; }
    bool reads() const {
        const bool returns = access == SyncAccess::kReadAndWrite || access == SyncAccess::kPost;
        return !writes() || (returns && !reduces());
    }
};

// The accesses of a word from a write to the next one. Reductions with one operation are one
// write, until a read comes between them.
struct SyncVersion {
    Events writes;
    Events reads;
    uint64_t number = 0;
    Commuting reduction;  // of all of the writes
    uint64_t value = 0;   // of a counter, before them
    uint64_t sum = 0;     // of the writes' addends
    uint64_t least = 0;   // of these

    Events all() const;
    // Adds a write to the others, unless its order among them matters.
    bool join(const Touch& touch);
    void begin(const Touch& touch);
    // True if a read before this version would be repeated: a poll that has read version `polled`
    // was ("Dynamic Partial Order Reductions for Spinloops", Kokologiannakis, Ren and Vafeiadis,
    // FMCAD 2021).
    bool is_known_to_poll(uint64_t polled) const {
        return polled == number || (polled + 1 == number && writes.size() == 1);
    }
};

struct SyncPost {
    uint32_t epoch;
    Clock published;
};

// The last accesses of a word.
struct SyncPlace {
    uint64_t window = 0;  // of shared memory; 0 for global memory
    uintptr_t word = 0;
    SyncVersion now, before, earlier;
    Events waits;                 // for a signal
    std::vector<SyncPost> posts;  // since other writes
    Clock written;

    uint64_t part_of_signature(uint64_t version, const SyncEvent& event, bool writes) const {
        return hash_of(window ? 0 : word, version << 1 | writes, event.owner, event.number);
    }
    void begin_version(const Touch& touch);
    // The change of the run's signature if an access of a version and a new one, one of which
    // writes, change places, and nothing else changes; 0: not known.
    uint64_t swap(
        const SyncVersion& version,
        const SyncEvent& first,
        bool first_writes,
        const SyncEvent& second,
        bool second_writes
    ) const;
};

}  // namespace tmaasync_emulate
