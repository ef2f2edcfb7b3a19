#pragma once

// The parts that the roles of attention_tensor_memory.cu share: operands, tensor memory, barriers,
// and the tiles that the producer hands out. attention_tensor_memory.cu explains the constants.
#include <tmaasync/attention/row_softmax.cuh>
#include <tmaasync/tensor_memory.cuh>

#include "abi.cuh"
#include "rows.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention {

constexpr int kQueryRows = 128;  // rows of a query tile: the lanes of tensor memory
constexpr int kQueryTiles = kTileRows / kQueryRows;
constexpr int kQueryPositions = kQueryRows / HEADS_PER_TILE;
static_assert(kQueryTiles * kQueryRows == kTileRows, "a tile has whole query tiles");
static_assert(CLUSTER == 1, "a tile's CTA loads its keys alone");
using TilePartial = PartialTile<CONSUMERS, kConsumerRows, HEAD_DIM>;

using Element = typename QTile::Element;
using Q = Tcgen05Buffer<Element, QTile::kSwizzle, Major::kK, kQueryRows, HEAD_DIM>;
using K = Tcgen05Buffer<Element, KTile::kSwizzle, Major::kK, BLOCK_N, HEAD_DIM>;
using V = Tcgen05Buffer<Element, VTile::kSwizzle, Major::kMN, BLOCK_N, HEAD_DIM>;
using O = Tcgen05Buffer<Element, OTile::kSwizzle, Major::kK, kQueryRows, HEAD_DIM>;  // staged
static_assert(sizeof(Element) == 2, "P has two elements in a word of tensor memory");

// --- tensor memory -------------------------------------------------------------------------------

using Scores = TmemTile<float, BLOCK_N>;
using Probabilities = TmemTile<u32, BLOCK_N / 2>;  // over the first half of their scores
using Accumulators = TmemTile<float, HEAD_DIM>;

constexpr int kUsedColumns = kQueryTiles * (BLOCK_N + HEAD_DIM);
static_assert(kUsedColumns <= 512, "tensor memory has 512 columns");
using Tmem = TmemAllocation<(kUsedColumns > 256 ? 512 : 256)>;

struct TmemTiles {
    u32 first;

    __device__ __forceinline__ explicit TmemTiles(const Tmem& tmem)
        : first(tmem.tile<float, BLOCK_N>().address) {}

    __device__ __forceinline__ Scores scores(int tile) const { return {first + tile * BLOCK_N}; }
    __device__ __forceinline__ Probabilities probabilities(int tile) const {
        return {scores(tile).address};
    }
    __device__ __forceinline__ Accumulators accumulators(int tile) const {
        return {first + kQueryTiles * BLOCK_N + tile * HEAD_DIM};
    }
};

// --- shared memory -------------------------------------------------------------------------------

// The barriers of a query tile. For each block of keys one role after the other arrives: S is
// complete, P is stored, O is rescaled, O is complete.
struct QueryTileBarriers {
    SharedMemBarrier queries_full;        // TMA
    SharedMemBarrier queries_empty;       // mma: has read the queries of a tile
    SharedMemBarrier scores_full;         // mma
    SharedMemBarrier probabilities_full;  // softmax
    SharedMemBarrier row_factors_full;    // softmax: row_factors are written
    SharedMemBarrier accumulators_ready;  // correction: O may be multiplied into
    SharedMemBarrier accumulators_full;   // mma

    __device__ __forceinline__ void init() {
        queries_full.init(1);
        queries_empty.init(1);
        scores_full.init(1);
        probabilities_full.init(4);
        row_factors_full.init(4);
        accumulators_ready.init(4);
        accumulators_full.init(1);
    }
};

// The producer's message to all other roles: a tile, or the end.
struct Task {
    Tile tile;
    bool is_end;
};

constexpr int kTaskSlots = 2;
constexpr int kTaskReaders = 1 + 4 * (kQueryTiles + 1);  // mma's thread, and warps

using KeysOrValues = typename KTile::Shared;
static_assert(sizeof(KeysOrValues) == sizeof(typename VTile::Shared), "K and V share a ring");

struct SharedMemory {
    typename QTile::Shared queries[kQueryTiles];
    typename OTile::Shared output;
    // The keys of a block, then its values.
    Tcgen05Ring<KeysOrValues, STAGES> blocks;
    // By row of the tile: what its accumulators are multiplied by, before a block or at the end.
    float row_factors[kTileRows];
    Task tasks[kTaskSlots];
    SharedMemBarrier tasks_full[kTaskSlots];
    SharedMemBarrier tasks_empty[kTaskSlots];
    QueryTileBarriers tiles[kQueryTiles];
    u32 tmem_address;

    __device__ void init() {
        blocks.init();
        for (int slot = 0; slot < kTaskSlots; ++slot) {
            tasks_full[slot].init(1);
            tasks_empty[slot].init(kTaskReaders);
        }
        for (auto& tile : tiles) tile.init();
        fence_barrier_init();
    }
};

// --- tasks ---------------------------------------------------------------------------------------

class TaskWriter {
public:
    __device__ __forceinline__ explicit TaskWriter(SharedMemory& shared) : shared_(shared) {}

    __device__ __forceinline__ void write(const Task& task) {
        shared_.tasks_empty[state_.index].wait(state_.phase);
        shared_.tasks[state_.index] = task;
        shared_.tasks_full[state_.index].arrive();
        state_.step();
    }

private:
    SharedMemory& shared_;
    PipelineState<kTaskSlots> state_ = PipelineState<kTaskSlots>::for_producer();
};

// Reads tasks in whole warps, or with kIsOneThread in one thread.
template <bool kIsOneThread = false>
class TaskReader {
public:
    __device__ __forceinline__ explicit TaskReader(SharedMemory& shared) : shared_(shared) {}

    // Take the next tile; false after the last.
    __device__ __forceinline__ bool take(Tile& tile) {
        shared_.tasks_full[state_.index].wait(state_.phase);
        const Task task = shared_.tasks[state_.index];
        if constexpr (!kIsOneThread) __syncwarp();
        if (kIsOneThread || lane_index() == 0) shared_.tasks_empty[state_.index].arrive();
        state_.step();
        tile = task.tile;
        return !task.is_end;
    }

private:
    SharedMemory& shared_;
    PipelineState<kTaskSlots> state_ = PipelineState<kTaskSlots>::for_consumer();
};

// Arrive once for the warp, after its accesses to tensor memory, which are complete.
__device__ __forceinline__ void arrive_by_warp(SharedMemBarrier& barrier) {
    tcgen05_fence_before_thread_sync();
    __syncwarp();
    if (lane_index() == 0) barrier.arrive();
}

// The partial output of a row's consumer, for a tile whose keys are split.
__device__ __forceinline__ auto& partial_of(TilePartial* partials, const Tile& tile, int row) {
    return partials[tile.slot()].consumers[row / kConsumerRows];
}

// The blocks of a tile, as the rows of one query tile see them: all query tiles visit the same.
__device__ __forceinline__ KeyBlocks
blocks_of(const Tile& tile, const Problem& problem, int index) {
    const i32 from = tile.position + index * kQueryPositions;
    return tile.blocks(problem).for_rows(tile.mask(problem).blocks(from, kQueryPositions));
}

}  // namespace tmaasync::kernels::attention
