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
// Where there is room dS has the stages of its queries. With one, a consumer writes dS once the
// other one has read the dS before.
constexpr u32 kDsStages = kDqShare == DqShare::kRows ? 1 : STAGES;
// With two stages a consumer hands over dQ while the one before is still added to memory; 80
// queries leave room for one. dV and dK take the same way.
constexpr u32 kDqStages = kDqShare == DqShare::kTransposedColumns ? 1 : 2;

struct SharedMemory {
    KeysAndValues rows;
    Queries queries;    // and lse
    Queries gradients;  // dO, and delta
    DsPanel ds[kDsStages][kConsumers];
    DqPart dq[kDqStages][kConsumers];

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

// The other consumer has read the dS that this one wrote.
__device__ __forceinline__ NamedBarrier<128 * kConsumers> ds_is_read(u32 consumer) {
    return {10 + consumer};
}

// Where a consumer stages dV and dK: in the memory of dQ.
using StagedGradients = typename KTile::Shared;
__device__ __forceinline__ auto& staged(DqPart& part) {
    static_assert(sizeof(StagedGradients) <= sizeof(DqPart), "dV and dK fit in dQ's memory");
    return reinterpret_cast<StagedGradients&>(part);
}

// The hand-over of results in a consumer's part of `dq` to the warp that sends them to memory, and
// of that part back to the consumer.
struct HandOver {
    u32 consumer;
    u32 stage;

    using Barrier = NamedBarrier<128 + 32>;
    __device__ __forceinline__ Barrier full() const { return {2 + kDqStages * consumer + stage}; }
    __device__ __forceinline__ Barrier empty() const {
        return {2 + kDqStages * (kConsumers + consumer) + stage};
    }
};

}  // namespace tmaasync
