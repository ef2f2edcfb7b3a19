// A launch: what the host gives, and what follows from it.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "host/stop.hpp"
#include "races/grid_races.hpp"
#include "rules.hpp"
#include "state/launch_memory.hpp"
#include "trace/posts.hpp"
#include "trace/recorder.hpp"

namespace tmaasync_emulate {

class SmColumns;
class SyncOrder;
class StartOrder;

struct Launch {
    void (*kernel)(void* const* arguments);
    void* const* arguments;
    uint3 grid;
    uint3 block;
    uint3 cluster;
    uint32_t shared_bytes;
    Policy policy;
    uint64_t seed;
    double budget_seconds;
    LaunchMemory memory;
    uint32_t static_bytes = 0;  // bytes of static shared variables
    uint32_t registers = 0;     // registers of each thread, if setmaxnreg may change them
    bool has_wide_maps = false;
    uint32_t sms = 0;
    bool shares_columns = false;  // the CTAs of an SM, of tensor memory
    GridRaces* races = nullptr;
    GridTrace* trace = nullptr;
    uint32_t* grid_barrier = nullptr;  // null unless the launch is cooperative
    const Stop* stop = nullptr;
    Rules rules{};
    StartOrder* unstarted = nullptr;  // its clusters that have not started
    SyncOrder* order = nullptr;       // null unless the launch is verified
    SmColumns* sm_columns = nullptr;  // null unless there are more CTAs than SMs
    // Members of a launch that runs together with launches of other devices.
    uint32_t number = 0;
    uint32_t first_cluster = 0;
    uint64_t first_cta = 0;
    uint64_t first_thread = 0;
    LaunchHistory* history = nullptr;
    Posts* posts = nullptr;     // null without a trace; with one, events take time
    uint64_t begins_after = 0;  // trace time at which the device's launch before ended

    static uint32_t count(uint3 extents) { return extents.x * extents.y * extents.z; }
    uint32_t threads() const { return count(block); }
    uint32_t cluster_ctas() const { return count(cluster); }
    uint64_t clusters() const { return uint64_t{grid.x} * grid.y * grid.z / cluster_ctas(); }
    uint64_t all_threads() const { return clusters() * cluster_ctas() * threads(); }
    // Numbers the launch, and what it has, after another one that runs together with it.
    void number_after(const Launch& other) {
        number = other.number + 1;
        first_cluster = other.first_cluster + static_cast<uint32_t>(other.clusters());
        first_cta = other.first_cta + other.clusters() * other.cluster_ctas();
        first_thread = other.first_thread + other.all_threads();
    }
    // Static variables lie after the dynamic memory.
    uint32_t dynamic_bytes() const {
        return (shared_bytes + kStaticAlignment - 1) / kStaticAlignment * kStaticAlignment;
    }
    uint32_t window_bytes() const { return dynamic_bytes() + static_bytes; }
    uint3 block_of(uint64_t index, uint32_t rank) const {
        const uint3 size = cluster;
        const uint64_t across = grid.x / size.x, down = grid.y / size.y;
        return {
            static_cast<uint32_t>(index % across) * size.x + rank % size.x,
            static_cast<uint32_t>(index / across % down) * size.y + rank / size.x % size.y,
            static_cast<uint32_t>(index / across / down) * size.z + rank / size.x / size.y,
        };
    }
};

}  // namespace tmaasync_emulate
