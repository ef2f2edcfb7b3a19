#pragma once

// The warps that add dQ to the workspace: each the part of one consumer, by bulk reductions
// (cp.reduce.async.bulk), while the consumers work on the next block.
#include <tmaasync/tma.cuh>

#include "pipeline.cuh"
#include "scheduler.cuh"

namespace tmaasync {

// Makes the tiles of keys add to a tile of queries one after the other, in the order of the
// schedule, so that every run gives the same bits. A tile of keys waits only for tiles that come
// before it in the schedule, which some CTA works on or has finished: there is no deadlock.
struct Turns {
    u32* turns;  // of each tile of queries, and in it of each consumer: the tiles that have added

    // The number of tiles of keys that add before this one.
    __device__ __forceinline__ static u32 before(
        const BackwardProblem& problem, const KeyTile& tile, i32 block
    ) {
        const KeyBlocks all = tile.seen_by(problem, block);
        const i32 own = tile.position / kTileKeys;
        return kStartsWithLastKeys ? all.end - 1 - own : own - all.first;
    }

    // Called by one thread.
    __device__ __forceinline__ void wait(i32 index, u32 turn) const {
        const volatile u32* current = turns + index;
        while (*current != turn) __nanosleep(20);
        __threadfence();
        ptx::fence_proxy_async_global();
    }

    // Called by the thread that has waited, once its reductions are complete.
    __device__ __forceinline__ void pass(i32 index) const {
        ptx::fence_proxy_async_global();
        __threadfence();
        atomicAdd(turns + index, 1);
    }
};

// One warp, for the consumer of this number.
struct Reduction {
    SharedMemory& shared;
    const BackwardProblem& problem;
    DqTile* dq;
    Turns turns;
    i32 tiles_per_head;
    int consumer;

    __device__ __forceinline__ void run() const {
        auto rows = shared.rows.consumer();
        const Task& task = shared.rows.side[kKeys];
        for (rows.wait(); !task.is_end; rows.wait()) {
            // Read where it lies: the producer's warps have few registers.
            add(task.tile);
            rows.release(kKeys);
            rows.step();
            rows.wait();
            rows.release(kValues);
            rows.step();
        }
    }

private:
    // Adds dQ of all blocks of a tile.
    __device__ __forceinline__ void add(const KeyTile& tile) const {
        const DqHandOver hand_over{consumer};
        i32 first = tile.first_tile;
        for (i32 head = 0; head < problem.heads_per_kv_head; ++head, first += tiles_per_head) {
            for (i32 block = tile.blocks.first; block < tile.blocks.end; ++block) {
                hand_over.full().sync();
                if (lane_index() == 0) add_part(tile, block, first + block);
                __syncwarp();
                hand_over.empty().arrive();
            }
        }
    }

    // Returns when the part may be overwritten. By one thread, always the same.
    __device__ __forceinline__ void add_part(const KeyTile& tile, i32 block, i32 number) const {
        const i32 turn_of = number * kConsumers + consumer;
        if constexpr (IS_DETERMINISTIC) turns.wait(turn_of, Turns::before(problem, tile, block));
        tma_reduce_1d<ReduceOp::kAdd, ElementType::kF32>(
            &dq[number].parts[consumer], &shared.dq[consumer], sizeof(DqPart)
        );
        commit_group();
        if constexpr (IS_DETERMINISTIC) {
            wait_group<0>();
            turns.pass(turn_of);
        } else {
            wait_group_read<0>();
        }
    }
};

}  // namespace tmaasync
