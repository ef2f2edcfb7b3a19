#pragma once

// The warps that send the results of a consumer to memory while it works on: dQ of each block,
// which bulk reductions (cp.reduce.async.bulk) add to the workspace, and dK and dV of the tile.
#include <tmaasync/tma.cuh>

#include "pipeline.cuh"
#include "rows.cuh"
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
        const KeyBlocks seen = tile.seen_by(problem, block);
        const i32 own = tile.position / kTileKeys;
        return TILES_DESCEND ? seen.end - 1 - own : own - seen.first;
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
    const KTile& dk;
    const KTile& dv;
    Turns turns;
    int consumer;

    __device__ __forceinline__ void run() const {
        const HandOver hand_over{consumer};
        auto rows = shared.rows.consumer();
        const Task& task = shared.rows.side[kKeys];
        hand_over.empty().arrive();  // at first nothing is in the memory
        for (rows.wait(); !task.is_end; rows.wait()) {
            // Read where it lies: the producer's warps have few registers.
            add(task.tile);
            const HeadRows of = task.tile.rows_of_keys();
            const i32 row = task.tile.position + consumer * kConsumerKeys;
            rows.release(kKeys);
            rows.step();
            rows.wait();
            hand_over.full().sync();
            if (lane_index() == 0) store(of, row);
            __syncwarp();
            hand_over.empty().arrive();
            rows.release(kValues);
            rows.step();
        }
    }

private:
    // Adds dQ of all blocks of a tile.
    __device__ __forceinline__ void add(const KeyTile& tile) const {
        const HandOver hand_over{consumer};
        const i32 heads = problem.heads_per_kv_head;
        auto visit = Visit::first(tile);
        for (i32 left = tile.blocks.count() * heads; left > 0; --left) {
            const i32 number = visit.number(problem, tile);
            const i32 turn_of = number * kConsumers + consumer;
            if constexpr (IS_DETERMINISTIC) {
                if (lane_index() == 0) {
                    turns.wait(turn_of, Turns::before(problem, tile, visit.block));
                }
                __syncwarp();
            }
            hand_over.full().sync();
            if (lane_index() == 0) add_part(number);
            __syncwarp();
            hand_over.empty().arrive();
            if constexpr (IS_DETERMINISTIC) {
                // After the hand-back: the consumer need not wait for the addition's completion.
                if (lane_index() == 0) {
                    wait_group<0>();
                    turns.pass(turn_of);
                }
                __syncwarp();
            }
            visit.step(tile, heads);
        }
    }

    // Returns when the part may be overwritten. By one thread, always the same.
    __device__ __forceinline__ void add_part(i32 number) const {
        tma_reduce_1d<ReduceOp::kAdd, ElementType::kF32>(
            &dq[number].parts[consumer], &shared.dq[consumer], sizeof(DqPart)
        );
        commit_group();
        wait_group_read<0>();
    }

    // Stores dK and dV of the consumer's keys. Returns when their memory may be overwritten.
    __device__ __forceinline__ void store(const HeadRows& of, i32 row) const {
        store_rows(dv, staged_dv(shared, consumer), of, row);
        store_rows(dk, staged_dk(shared, consumer), of, row);
        commit_group();
        wait_group_read<0>();
    }
};

}  // namespace tmaasync
