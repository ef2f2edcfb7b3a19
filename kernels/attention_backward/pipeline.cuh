#pragma once

// The shared memory of the attention backward, and the named barriers between its warps.
#include <tmaasync/ring.cuh>
#include <tmaasync/roles.cuh>

#include "config.cuh"
#include "scheduler.cuh"

namespace tmaasync {

constexpr int kConsumerWarps = 4 * kConsumers;

// The message that comes with the keys of a tile.
struct Task {
    KeyTile tile;
    bool is_end;
};

// The rows of keys or of values, one part for each consumer.
struct KeyRows {
    typename KTile::Shared consumers[kConsumers];
};

// Keys and values in turn, so that each always has the same stage. The warps that add dQ take part
// for the message, which comes with the keys.
using KeysAndValues =
    Ring<KeyRows, 2, ConsumerWarps<kConsumerWarps + kConsumers>, Multicast<1>, Task>;
constexpr u32 kKeys = 0, kValues = 1;
using Queries =
    Ring<typename QTile::Shared, STAGES, ConsumerWarps<kConsumerWarps>, Multicast<1>, RowValues>;
constexpr int kDsStages = 2;

struct SharedMemory {
    KeysAndValues rows;
    Queries queries;    // and lse
    Queries gradients;  // dO, and delta
    DsPanel ds[kDsStages][kConsumers];
    DqPart dq[kConsumers];

    // Initialise the barriers, by one thread.
    __device__ __forceinline__ void init() {
        rows.init();
        queries.init();
        gradients.init();
    }
};

// Both consumers have written dS of a block; what they read of the dS before is read.
__device__ __forceinline__ void sync_ds() {
    NamedBarrier<128 * kConsumers>{1}.sync();
}

// Where a consumer stages dK and dV: in the memory of its dQ, and of its values.
__device__ __forceinline__ auto& staged_dk(SharedMemory& shared, int consumer) {
    static_assert(sizeof(typename KTile::Shared) <= sizeof(DqPart), "dK fits in dQ's memory");
    return reinterpret_cast<typename KTile::Shared&>(shared.dq[consumer]);
}
__device__ __forceinline__ auto& staged_dv(SharedMemory& shared, int consumer) {
    return shared.rows.stages[kValues].consumers[consumer];
}

// The hand-over of results in a consumer's part of `dq` to the warp that sends them to memory, and
// of that part back to the consumer.
struct HandOver {
    int consumer;

    using Barrier = NamedBarrier<128 + 32>;
    __device__ __forceinline__ Barrier full() const { return {2u + consumer}; }
    __device__ __forceinline__ Barrier empty() const { return {2u + kConsumers + consumer}; }
};

}  // namespace tmaasync
