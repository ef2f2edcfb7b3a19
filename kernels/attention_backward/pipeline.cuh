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
// With one stage a consumer writes dS once the other one has read the dS before. Else dS has the
// stage of its queries.
constexpr u32 kDsStages = DS_STAGES;
static_assert(kDsStages == 1 || kDsStages == STAGES, "one stage, or one for each of the queries");
// Parts of dQ's memory, a ring that the consumers take parts of in turn, the first one first. With
// more parts than consumers, one hands over dQ while its dQ before is still added to memory. dV and
// dK take the same way.
constexpr u32 kDqParts = DQ_PARTS;
// With an odd number every part goes from one consumer to the other.
constexpr bool kSharesDqParts = kDqParts % kConsumers != 0;
constexpr u32 kOwnDqParts = kSharesDqParts ? kDqParts : kDqParts / kConsumers;
static_assert(kConsumers <= kDqParts && kOwnDqParts <= 3, "16 named barriers");

__device__ __forceinline__ u32 next_part(u32 part) {
    return (part + kConsumers) % kDqParts;
}

struct SharedMemory {
    KeysAndValues rows;
    Queries queries;    // and lse
    Queries gradients;  // dO, and delta
    DsPanel ds[kDsStages][kConsumers];
    DqPart dq[kDqParts];

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
    return {14 + consumer};
}

// Where a consumer stages dV and dK: in the memory of dQ.
using StagedGradients = typename KTile::Shared;
__device__ __forceinline__ auto& staged(DqPart& part) {
    static_assert(sizeof(StagedGradients) <= sizeof(DqPart), "dV and dK fit in dQ's memory");
    return reinterpret_cast<StagedGradients&>(part);
}

// The hand-over of results in a part of `dq` from a consumer to its warp that sends them to memory,
// and of an empty part to the consumer that takes it. No two warps wait at the same barrier: a warp
// that waits early would count as another one's arrival.
struct HandOver {
    u32 consumer;
    u32 part;

    using Barrier = NamedBarrier<128 + 32>;
    __device__ __forceinline__ Barrier full() const { return barrier(consumer); }
    __device__ __forceinline__ Barrier empty() const { return barrier(kConsumers + consumer); }
    // The consumer that takes the part next.
    __device__ __forceinline__ HandOver next() const {
        return {kSharesDqParts ? 1 - consumer : consumer, part};
    }

private:
    __device__ __forceinline__ Barrier barrier(u32 group) const {
        return {2 + kOwnDqParts * group + (kSharesDqParts ? part : part / kConsumers)};
    }
};

}  // namespace tmaasync
