// The state of a search for races, shared by all clusters.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "races/first_reads.hpp"
#include "races/posted_epochs.hpp"
#include "races/shadow.hpp"

namespace tmaasync_emulate {

class Detector;
struct Launch;

// A launch of several that run together: its clusters have the numbers from `first` on.
struct LaunchSpan {
    uint32_t first;
    uint32_t device;
    const Launch* launch;
};

// Accesses that happen before all of a launch, and before its device's next launch.
struct LaunchHistory {
    ClusterClocks before;
    ClusterClocks after;
};

// The state of a search for races, in which all clusters run on one host thread.
struct GridRaces {
    uint64_t words_left;  // words left to record; after them the search is over
    // The accesses that cells have no room for, by address, if a launch is verified.
    std::optional<std::map<uintptr_t, std::vector<Access>>> lost{};
    bool lacked_room = false;         // some cell, for an access
    uint64_t launch = next_launch();  // its number in the process
    uint32_t order = 0;               // number of the last access or issued operation
    GlobalShadow shadow{};
    // The last group of stores that a thread knows to be in global memory, by cluster and agent.
    std::map<std::pair<uint32_t, Agent>, Epoch> stored{};
    std::unordered_map<uintptr_t, AtomicPlace> atomics{};
    std::unordered_map<uintptr_t, PostedEpochs> posts{};  // indexed by the signal's address
    FirstReadSites first_reads{};
    std::vector<LaunchSpan> spans{};                      // launches that run together
    std::unordered_map<uint32_t, Detector*> detectors{};  // of running clusters, by their number

    static uint64_t next_launch() {
        static std::atomic<uint64_t> last{0};
        return ++last;
    }

    // Called for memory that a new cluster uses.
    void forget_lost(uintptr_t first, uintptr_t end) {
        if (lost) lost->erase(lost->lower_bound(first), lost->lower_bound(end));
    }
    bool is_over() const { return words_left == 0; }
    bool has_peers() const { return spans.size() > 1; }
    uint32_t device_of(uint32_t cluster) const {
        uint32_t device = 0;
        for (const LaunchSpan& span : spans) {
            if (span.first > cluster) break;
            device = span.device;
        }
        return device;
    }
    // Atomic operations publish to threads of their device, or at system scope to all devices.
    AtomicPlace& place_of(uintptr_t address, uint32_t device) {
        constexpr int kAddressBits = 48;
        return atomics[address | uintptr_t{device} << kAddressBits];
    }
    AtomicPlace& place_for_all(uintptr_t address) { return place_of(address, 0xffff); }
};

}  // namespace tmaasync_emulate
