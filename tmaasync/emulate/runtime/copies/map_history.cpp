#include "copies/map_history.hpp"

#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "host/process_mutex.hpp"
#include "memory/accesses.hpp"
#include "schedule/faults.hpp"
#include "tma/tensor_map.hpp"

namespace tmaasync_emulate {

namespace {

// A map that launches with a search for races have used or edited.
struct KnownMap {
    std::array<uint8_t, kMapBytes> bytes;  // at its first use in the last launch that used it
    uint64_t used_by = 0;                  // number of that launch
    uint64_t edited_by = 0;                // number of the last launch that edited it
    bool is_changed = false;               // before the launch that used it last
};

std::map<uintptr_t, KnownMap>& known_maps() {
    static auto* const maps = new std::map<uintptr_t, KnownMap>;
    return *maps;
}

ProcessMutex& lock() {
    static auto* const mutex = new ProcessMutex;
    return *mutex;
}

// True for a map that changed before this launch.
bool has_changed(uintptr_t map, uint64_t launch) {
    const std::lock_guard guard(lock());
    KnownMap& known = known_maps()[map];
    if (known.used_by == launch) return known.is_changed;
    const auto* now = reinterpret_cast<const uint8_t*>(map);
    const bool is_edited = known.edited_by && known.edited_by != launch;
    const bool is_rewritten = known.used_by && std::memcmp(known.bytes.data(), now, kMapBytes) != 0;
    known.is_changed = is_edited || is_rewritten;
    known.used_by = launch;
    if (is_edited) known.edited_by = 0;
    std::memcpy(known.bytes.data(), now, kMapBytes);
    return known.is_changed;
}

}  // namespace

void check_map_is_current(Fiber& fiber, uintptr_t map) {
    Cluster& cluster = *fiber.cluster;
    Detector* const detector = cluster.detector.get();
    if (!detector || cluster.launch.memory.library.holds(map, 1)) return;
    cluster.launch.rules.note_used_map();
    // An edit by this launch makes a race of its own.
    if (detector->is_written_globally(map, kMapBytes)) return;
    if (!has_changed(map, cluster.launch.races->launch)) return;
    if (detector->has_acquired_map(fiber.number, map)) return;
    Access before = access_in(cluster, fiber.number, 0, 0, Operation::kEarlierWrite);
    before.is_write = true;
    const Access use = access_in(
        cluster, fiber.number, detector->epoch_of(fiber.number), fiber.site, Operation::kMapRead
    );
    detector->report({before, use, {Space::kGlobal, 0, map}, true});
    stop_if_race(fiber);
}

void note_edited_map(Fiber& fiber, uintptr_t map) {
    if (!fiber.cluster->detector) return;
    const std::lock_guard guard(lock());
    known_maps()[map].edited_by = fiber.cluster->launch.races->launch;
    fiber.cluster->launch.rules.note_used_map();
}

// Forgets all maps outside these arrays, whose memory may be used again for other maps.
extern "C" TMAASYNC_EMULATE_CALL void tmaasync_emulate_keep_maps(
    const Array* array, uint64_t count
) {
    const std::lock_guard guard(lock());
    std::erase_if(known_maps(), [&](const auto& known) {
        return std::none_of(array, array + count, [&](const Array& one) {
            return one.holds(known.first, kMapBytes);
        });
    });
}

}  // namespace tmaasync_emulate
