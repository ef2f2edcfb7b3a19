#pragma once

// The shared memory of the attention backward, and the named barriers between its warps.
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/roles.cuh>

#include "config.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention_backward {

constexpr int kConsumerWarps = 4 * kConsumers;

// The message that accompanies the keys of a tile.
struct Task {
    KeyTile tile;
    bool is_end;
};

// The rows of keys or values, one part per consumer.
struct KeyRows {
    typename KTile::Shared consumers[kConsumers];
};

// Keys and values alternate, so that each always has the same stage. The warps that add dQ are
// consumers too, for the message that accompanies the keys.
using KeysAndValues =
    Ring<KeyRows, 2, ConsumerWarps<kConsumerWarps + kConsumers>, Multicast<1>, Task>;
constexpr u32 kKeys = 0, kValues = 1;
using Queries =
    Ring<typename QTile::Shared, STAGES, ConsumerWarps<kConsumerWarps>, Multicast<1>, RowValues>;
// If memory suffices, dS has as many stages as the queries. With one stage, a consumer writes dS
// after the other consumer has read the previous dS.
constexpr u32 kDsStages = kDqShare == DqShare::kRows ? 1 : STAGES;
// With two stages a consumer hands over dQ while the previous one is still added to memory; 80
// queries leave memory for only one. dV and dK use the same stages.
constexpr u32 kDqStages = kDqShare == DqShare::kTransposedColumns ? 1 : 2;

struct SharedMemory {
    KeysAndValues rows;
    Queries queries;    // Q and lse
    Queries gradients;  // dO and delta
    DsPanel ds[kDsStages][kConsumers];
    DqPart dq[kDqStages][kConsumers];

    // Initialise the barriers; called by one thread.
    __device__ __forceinline__ void init() {
        rows.init();
        queries.init();
        gradients.init();
    }
};

// Wait until both consumers have written dS of a block, and have read the previous dS.
__device__ __forceinline__ void sync_ds() {
    NamedBarrier<128 * kConsumers>{1}.sync();
}

// The barrier on which the other consumer signals that it has read this consumer's dS.
__device__ __forceinline__ NamedBarrier<128 * kConsumers> ds_is_read(u32 consumer) {
    return {10 + consumer};
}

// A consumer's staging memory for dV and dK, which is the memory of dQ.
using StagedGradients = typename KTile::Shared;
__device__ __forceinline__ auto& staged(DqPart& part) {
    static_assert(sizeof(StagedGradients) <= sizeof(DqPart), "dV and dK fit in dQ's memory");
    return reinterpret_cast<StagedGradients&>(part);
}

// The hand-over of a consumer's part of `dq`: with results to the warp that sends them to memory,
// and empty back to the consumer.
struct HandOver {
    u32 consumer;
    u32 stage;

    using Barrier = NamedBarrier<128 + 32>;
    __device__ __forceinline__ Barrier full() const { return {2 + kDqStages * consumer + stage}; }
    __device__ __forceinline__ Barrier empty() const {
        return {2 + kDqStages * (kConsumers + consumer) + stage};
    }
};

}  // namespace tmaasync::kernels::attention_backward
