// The state of asynchronous copies in flight.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "races/race.hpp"
#include "state/queue.hpp"
#include "state/synced.hpp"
#include "tma/reduce_op.hpp"
#include "tma/tensor_map.hpp"

namespace tmaasync_emulate {

struct Cta;
struct Fiber;

// The operation of a bulk reduction without a tensor map.
struct BulkReduction {
    ReduceOp op;
    ElementType type;
};

// A copy in flight into shared memory, the response of a request for a cluster, an arrival that
// waits for a thread's cp.async copies, or an operation of tcgen05: the oldest of the target's
// queue.
struct Flight {
    enum class Kind : uint8_t {
        kTiled,
        kIm2col,
        kBulk,
        kPush,
        kResponse,
        kArrival,
        kTensor,
    } kind;
    TensorMapView map;
    std::array<int32_t, kMaxRank> at;
    std::array<uint16_t, kMaxSpatial> offsets;
    BoxMode mode;  // of a tensor copy
    const void* global;
    uint32_t bytes;  // size in shared memory
    Cta* target;
    uint32_t shared;
    Cta* credited;     // the CTA of the barrier
    uint32_t barrier;  // its offset
    // The barrier's phase when the copy was issued; or when its thread expected bytes, if it has
    // not waited since.
    uint64_t phase = 0;
    Fiber* issuer;
    uintptr_t map_address;  // 0 for a parameter, which is never written
    uintptr_t site = 0;
    Issued issued;
    std::shared_ptr<const Synced> synced;  // null unless the launch is verified
    uint32_t sequence = kNothing;
    Epoch epoch = 0;  // arrivals only: epoch of the thread's last copies that it counts
    // The source of a push.
    Cta* source = nullptr;
    uint32_t source_offset = 0;
    std::optional<BulkReduction> reduction;
    std::array<uint32_t, 4> response{};  // of a request for a cluster
};

// A cp.async in flight.
struct ThreadCopy {
    uint32_t shared;
    const void* global;
    uint32_t bytes;
    uint32_t source_bytes;  // the rest is filled with zeros
    uintptr_t site = 0;
    Epoch epoch = 0;
    Issued issued;
};

// A copy out of shared memory, in a bulk group.
struct Store {
    enum class Kind : uint8_t { kTiled, kReduce, kBulk, kBulkReduce } kind;
    TensorMapView map;
    std::array<int32_t, kMaxRank> at;
    ReduceOp op;
    ElementType type;  // reductions without a map only
    void* global;
    uint32_t bytes;               // size in shared memory
    uint32_t byte_mask = 0xffff;  // bit i chooses byte i of every 16; copies without a map only
    uint32_t shared;
    uintptr_t site = 0;
    uintptr_t map_address;  // 0 for a parameter, which is never written
    bool is_awaited = false;
    bool is_read = false;
    bool is_written = false;
    std::vector<uint8_t> snapshot;
    Epoch epoch;
    Issued issued;
    uint32_t sequence = kNothing;
};

// A store that was not yet written when its thread ended.
struct LateStore {
    Fiber* issuer;
    Store store;
};

// The bulk groups of a thread: its copies out of shared memory.
struct BulkStores {
    std::vector<Store> open;
    Queue<std::vector<Store>> groups;
    Epoch commits = 0;
};

// The cp.async copies of a thread.
struct ThreadCopies {
    std::vector<ThreadCopy> pending;
    std::vector<Epoch> groups;  // the last epoch of each group
    Epoch epoch = 1;
};

}  // namespace tmaasync_emulate
