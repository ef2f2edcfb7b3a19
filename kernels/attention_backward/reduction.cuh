#pragma once

// The warps that send a consumer's results to memory while it continues: dQ of each block, which
// bulk reductions (cp.reduce.async.bulk) add to the workspace, and dK and dV of the tile.
#include <tmaasync/ptx/gpu.cuh>
#include <tmaasync/tma.cuh>

#include "pipeline.cuh"
#include "rows.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention_backward {

// The order in which tiles of keys add to a part of dQ. The first tile stores instead of adding, so
// that the workspace need not be cleared, and the others wait for its store. In deterministic mode
// each tile waits for all earlier tiles in the schedule: CTAs are processing or have finished them,
// so there is no deadlock.
struct Turns {
    // Per part of dQ, initially 0. In deterministic mode it is the number of additions so far, else
    // kClaimed while the first tile stores, then kStored.
    u32* states;
    static constexpr u32 kClaimed = 1;
    static constexpr u32 kStored = 2;

    struct Turn {
        i32 part;
        u32 before;  // number of earlier additions, in deterministic mode
        u32 state;   // last seen state of the part

        __device__ __forceinline__ bool is_first() const {
            return (IS_DETERMINISTIC ? before : state) == 0;
        }
    };

    // Request the turn of a tile, for which await() waits. One thread calls all of these functions.
    __device__ __forceinline__ Turn
    request(const BackwardProblem& problem, const KeyTile& tile, i32 block, i32 part) const {
        u32* const state = states + part;
        if constexpr (IS_DETERMINISTIC) {
            return {part, before(problem, tile, block), ptx::ld_acquire_gpu(state)};
        } else {
            return {part, 0, ptx::atom_acquire_gpu_cas(state, 0, kClaimed)};
        }
    }

    __device__ __forceinline__ void await(Turn& turn) const {
        if (turn.is_first()) return;
        while (IS_DETERMINISTIC ? turn.state != turn.before : turn.state != kStored) {
            __nanosleep(20);
            turn.state = ptx::ld_acquire_gpu(states + turn.part);
        }
        ptx::fence_proxy_async_global();
    }

    // Let the next tiles add, after the bulk copies of this thread are complete.
    __device__ __forceinline__ void pass(const Turn& turn) const {
        if (!IS_DETERMINISTIC && !turn.is_first()) return;
        wait_group<0>();
        ptx::fence_proxy_async_global();
        static_assert(kStored == kClaimed + 1);
        ptx::red_release_gpu_add(states + turn.part, 1);
    }

private:
    // The number of tiles of keys that add before this one, in deterministic mode.
    __device__ __forceinline__ static u32 before(
        const BackwardProblem& problem, const KeyTile& tile, i32 block
    ) {
        const KeyBlocks seen = tile.seen_by(problem, block);
        const i32 own = tile.position / kTileKeys;
        return TILES_DESCEND ? seen.end - 1 - own : own - seen.first;
    }
};

// The work of one warp, which serves one consumer.
struct Reduction {
    SharedMemory& shared;
    const BackwardProblem& problem;
    DqTile* dq;
    const KTile& dk;
    const KTile& dv;
    Turns turns;
    u32 consumer;
    u32 stage = 0;

    __device__ __forceinline__ void run() {
        auto rows = shared.rows.consumer();
        const Task& task = shared.rows.side[kKeys];
        for (u32 each = 0; each < kDqStages; ++each) HandOver{consumer, each}.empty().arrive();
        for (rows.wait(); !task.is_end; rows.wait()) send(task.tile, rows);
    }

private:
    using Turn = Turns::Turn;
    using Rows = RingConsumer<KeysAndValues, Proxy::kGeneric>;

    // Send the results of a tile to memory. The tile's message is read in place, because the
    // producer's warps have few registers, and released before the last block.
    __device__ __forceinline__ void send(const KeyTile& tile, Rows& rows) {
        const i32 heads = problem.heads_per_kv_head;
        i32 left = tile.blocks.count() * heads;
        const bool is_seen = left > 0;
        auto visit = Visit::first(tile);
        Turn turn{};
        if (is_seen && lane_index() == 0) {
            turn = request(tile, visit);
            turns.await(turn);
        }
        while (--left > 0) {
            visit.step(tile, heads);
            Turn next{};
            // The request overlaps the addition.
            add(turn, [&] { next = request(tile, visit); });
            if (lane_index() == 0) {
                turns.pass(turn);
                turns.await(next);
            }
            turn = next;
        }
        const HeadRows of = tile.rows_of_keys();
        const i32 row = tile.position + consumer * kConsumerKeys;
        rows.release(kKeys);
        rows.step();
        rows.wait();
        rows.release(kValues);
        rows.step();
        if (is_seen) {
            add(turn, [] {});
            if (lane_index() == 0) turns.pass(turn);
        }
        send_part([&](DqPart& part) {
            put_rows<ADDS_KEYS>(dv, staged(part), of, row);
            commit_group();
        });
        send_part([&](DqPart& part) {
            put_rows<ADDS_KEYS>(dk, staged(part), of, row);
            commit_group();
        });
    }

    __device__ __forceinline__ Turn request(const KeyTile& tile, const Visit& visit) const {
        const i32 part = visit.number(problem, tile) * kConsumers + consumer;
        return turns.request(problem, tile, visit.block, part);
    }

    // Add dQ of a block.
    template <typename Meanwhile>
    __device__ __forceinline__ void add(const Turn& turn, const Meanwhile& meanwhile) {
        send_part([&](DqPart& part) {
            DqPart* const all = &dq->parts[0] + turn.part;
            if (turn.is_first()) {
                tma_store_1d(all, &part, sizeof(DqPart));
            } else {
                tma_reduce_1d<ReduceOp::kAdd, ElementType::kF32>(all, &part, sizeof(DqPart));
            }
            commit_group();
            meanwhile();
        });
    }

    // Send the consumer's next part in one thread, and hand the memory back.
    template <typename Send>
    __device__ __forceinline__ void send_part(const Send& send) {
        const HandOver hand_over{consumer, stage};
        hand_over.full().sync();
        if (lane_index() == 0) {
            // After the barrier one thread's fence covers all writes of the consumer.
            fence_async_view_proxy();
            send(shared.dq[stage][consumer]);
            wait_group_read<0>();
        }
        __syncwarp();
        hand_over.empty().arrive();
        stage = (stage + 1) % kDqStages;
    }
};

}  // namespace tmaasync::kernels::attention_backward
