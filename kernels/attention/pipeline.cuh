#pragma once

// Attention's shared memory: the tasks and queries that the producer hands over, and the pipelines
// of keys and of values.
#include "abi.cuh"
#include "scheduler.cuh"

namespace tmaasync {

using Element = typename QTile::Element;
using StageState = PipelineState<STAGES>;

// FP8 queries, keys and values: attention_values.cu has transposed the values, and every KV head
// has descale factors.
constexpr bool kIsFp8 = sizeof(Element) == 1;

static_assert(
    !O_OVER_Q || sizeof(typename QTile::Shared) == sizeof(typename OTile::Shared),
    "rows of one width"
);

constexpr int kThreads = (1 + CONSUMERS) * kWarpgroupThreads;
constexpr int kProducer = 0;  // the warpgroup that loads
constexpr int kWarps = kWarpgroupThreads / 32;

static_assert(CLUSTER == 1 || !IS_PACKED, "tiles of packed sequences have no fixed neighbours");
static_assert(!kIsFp8 || !IS_PACKED, "values of packed sequences are not transposed");

// --- tasks ---------------------------------------------------------------------------------------

// More tasks than query buffers: a task is read until its output leaves, when the queries of the
// next are in use already.
constexpr int kTasks = 2 * QUERY_BUFFERS;

// A stage of the task pipeline, and the buffer and phase of its queries.
struct TaskState {
    u32 index = 0;

    __device__ __forceinline__ u32 buffer() const { return index % QUERY_BUFFERS; }
    __device__ __forceinline__ u32 phase() const { return index / QUERY_BUFFERS; }
    __device__ __forceinline__ TaskState before(u32 steps) const {
        return {(index + kTasks - steps) % kTasks};
    }
    __device__ __forceinline__ void step() { index = (index + 1) % kTasks; }
};

// The descale factors of a tile: of FP8 its KV head's, else 1.
template <bool kIsScaled>
struct TileDescale {
    __device__ static TileDescale of(const Descale*, const Problem&, const Tile&) { return {}; }
    __device__ static constexpr Descale descale() { return {1, 1}; }
};
template <>
struct TileDescale<true> {
    Descale own;

    __device__ __forceinline__ static TileDescale of(
        const Descale* all, const Problem& problem, const Tile& tile
    ) {
        const i32 kv_heads = problem.heads / problem.heads_per_kv_head;
        return {all[tile.entry.index * kv_heads + tile.head / problem.heads_per_kv_head]};
    }
    __device__ __forceinline__ Descale descale() const { return own; }
};

// The message from the producer that comes with the queries of a tile.
struct Task : TileDescale<kIsFp8> {
    Tile tile;
    bool is_last;  // there is no tile any more
};

// --- shared memory -------------------------------------------------------------------------------

// Where a consumer's output is staged: in its own memory, or over its queries.
template <bool kIsOverQ>
struct OutputStaging {
    typename OTile::Shared tiles[CONSUMERS];

    __device__ __forceinline__ auto& at(typename QTile::Shared&, int consumer) {
        return tiles[consumer];
    }
};
template <>
struct OutputStaging<true> {
    __device__ __forceinline__ auto& at(typename QTile::Shared& q, int) {
        return reinterpret_cast<typename OTile::Shared&>(q);
    }
};

struct SharedMemory {
    typename QTile::Shared q[QUERY_BUFFERS][CONSUMERS];
    typename KTile::Shared k[STAGES];
    typename VTile::Shared v[STAGES];
    OutputStaging<O_OVER_Q> o;
    Task tasks[kTasks];
    SharedMemBarrier q_full[QUERY_BUFFERS][CONSUMERS];
    SharedMemBarrier q_empty[QUERY_BUFFERS][CONSUMERS];
    SharedMemBarrier k_full[STAGES];
    SharedMemBarrier k_empty[STAGES];
    SharedMemBarrier v_full[STAGES];
    SharedMemBarrier v_empty[STAGES];
};

__device__ void init_barriers(SharedMemory& shared) {
    for (int buffer = 0; buffer < QUERY_BUFFERS; ++buffer) {
        for (int consumer = 0; consumer < CONSUMERS; ++consumer) {
            shared.q_full[buffer][consumer].init(1);
            shared.q_empty[buffer][consumer].init(kWarps);
        }
    }
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.k_full[stage].init(1);
        // One lane of every consumer warp of every CTA that our multicast writes into.
        shared.k_empty[stage].init(CONSUMERS * kWarps * CLUSTER);
        shared.v_full[stage].init(1);
        shared.v_empty[stage].init(CONSUMERS * kWarps * CLUSTER);
    }
    fence_barrier_init();
}

}  // namespace tmaasync
