#pragma once

// Ring attention: how ranks exchange keys and values, and which of them a tile needs.
// ring_attention.cu explains the constants.
#include <tmaasync/shards.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/list_scheduler.cuh>
#include <tmaasync/structured/static_scheduler.cuh>
#include <tmaasync/structured/store_ring.cuh>

#include "abi.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention {

// Chunks of a rank's positions. With a causal mask rank r of P has the chunks r and 2 P - 1 - r of
// the sequence (zigzag), so that all ranks multiply equally much.
constexpr int kChunks = HAS_RIGHT ? 2 : 1;

// Rows of a KV head that are announced by one signal, keys and values together.
constexpr int kPieceRows = 128;
constexpr int kPushRows = PushTile::side(1);
static_assert(kPieceRows % kPushRows == 0, "a piece consists of whole push tiles");

using PushRing = StoreRing<typename PushTile::Shared, PUSH_STAGES, PUSH_STAGES / 2>;

// A tile over both chunks of a rank. Rows of the second one count from `second_row`; at the end of
// either chunk loads are filled with zeros, and stores are clipped.
template <typename TileType>
struct ChunkedTile {
    using Shared = typename TileType::Shared;

    const TileType& first;
    const TileType& second;
    i32 second_row;

    __device__ __forceinline__ void async_copy(
        Shared& shared, SharedMemBarrier& full, Coordinates<4> at
    ) const {
        if (is_second(at)) {
            second.async_copy(shared, full, at);
        } else {
            first.async_copy(shared, full, at);
        }
    }

    __device__ __forceinline__ void async_store(const Shared& shared, Coordinates<4> at) const {
        if (is_second(at)) {
            second.async_store(shared, at);
        } else {
            first.async_store(shared, at);
        }
    }

private:
    // Also count the row from the start of its chunk.
    __device__ __forceinline__ bool is_second(Coordinates<4>& at) const {
        if (kChunks == 1 || at.values[2] < second_row) return false;
        at.values[2] -= second_row;
        return true;
    }
};

// The sizes of a rank's part of the problem.
struct RankProblem {
    const Problem& problem;
    i32 ranks;
    i32 rank;
    i32 chunk_length;
    i32 spans_per_chunk;

    __device__ __forceinline__ RankProblem(const Problem& problem, const Signals& signals)
        : problem(problem),
          ranks(signals.ranks),
          rank(signals.rank),
          chunk_length(problem.queries / kChunks),
          spans_per_chunk(count_tiles(chunk_length, kSpanPositions)) {}

    __device__ __forceinline__ i32 kv_heads() const {
        return problem.heads / problem.heads_per_kv_head;
    }
    // The first position of the second chunk, in whole spans.
    __device__ __forceinline__ i32 second_row() const { return spans_per_chunk * kSpanPositions; }

    // Keys that precede the end of a chunk of this rank; without a mask, all.
    __device__ __forceinline__ i32 keys_of(i32 chunk) const {
        if constexpr (kChunks == 1) return ranks * chunk_length;
        return (chunk == 0 ? rank + 1 : 2 * ranks - rank) * chunk_length;
    }
    // Rows of the buffer that this rank reads.
    __device__ __forceinline__ i32 buffered_keys() const { return keys_of(kChunks - 1); }
};

// The spans of a rank's queries, head by head; the spans of a head are in one chunk after the
// other.
struct RingTiles {
    using Cluster = Span;

    const RankProblem& own;

    __device__ __forceinline__ int count() const {
        const Problem& problem = own.problem;
        return problem.batch * (problem.heads / HEADS_PER_TILE) * kChunks * own.spans_per_chunk;
    }

    // This CTA's tile of a span. Its mask compares positions from the ends of queries and keys.
    __device__ __forceinline__ Tile at(i32 span) const {
        const i32 heads = own.problem.heads / HEADS_PER_TILE;
        const i32 head = span / (kChunks * own.spans_per_chunk);
        const i32 span_of_head = span % (kChunks * own.spans_per_chunk);
        const i32 chunk = span_of_head / own.spans_per_chunk;
        const i32 position = (span_of_head * CLUSTER + Span::rank_m()) * kTilePositions;
        const i32 first = chunk * own.second_row();
        // In the log-sum-exp, chunks follow each other without a gap.
        const RaggedSequence queries{chunk * own.chunk_length - first, first + own.chunk_length};
        const Entry entry{head / heads, queries, {0, own.keys_of(chunk)}};
        return {{}, entry, head % heads * HEADS_PER_TILE, position};
    }
};

__device__ __forceinline__ auto ring_schedule(
    const RingTiles& tiles, const i32* schedule, int waves
) {
    if constexpr (HAS_RIGHT) {
        return ListScheduler<RingTiles>(tiles, schedule, waves);
    } else {
        return StaticScheduler<RingTiles>(tiles);
    }
}

// A rank's part in one round. The buffer of a rank has the keys of all ranks: with a causal mask in
// the order of the sequence; else the own ones last, before them the keys of the next rank, and so
// on. Tiles load keys from the end on, so both begin with the own shard and go on with the shard
// that arrives next. The slots of a shard are its pieces: [entry][KV head][chunk][piece].
struct RingRound : Round {
    const RankProblem& own;
    i32 pieces;  // of a chunk

    __device__ __forceinline__ RingRound(
        const Signals& signals, const Shards& shards, const RankProblem& own, u32 epoch
    )
        : Round{signals, shards, epoch},
          own(own),
          pieces(count_tiles(own.chunk_length, kPieceRows)) {}

    // Push the own keys and values to all ranks; called by one thread of every CTA. Pieces go in
    // the order in which tiles need them: KV head by KV head, to the rank itself, then to the rank
    // before it, the last piece first. targets has the tiles [rank][chunk][keys, values].
    __device__ __forceinline__ void push(
        PushRing& ring,
        const PushTile& k,
        const PushTile& v,
        const TMATensorTileArray<PushTile>& targets
    ) const {
        auto transfers = ring.transfers();
        u32 with_room = 0;
        const i32 per_peer = kChunks * pieces, per_head = own.ranks * per_peer;
        const i32 heads = own.kv_heads();
        for (i32 i = blockIdx.x; i < own.problem.batch * heads * per_head; i += gridDim.x) {
            const i32 head = i / per_head, before = i % per_head / per_peer;
            const i32 peer = (own.rank + own.ranks - before) % own.ranks;
            const i32 piece = per_peer - 1 - i % per_peer;
            const i32 chunk = piece / pieces;
            // Causal: no query of a later rank attends to the second chunk.
            if (chunk > 0 && peer > own.rank) continue;
            if (!(with_room >> peer & 1)) signals.wait(peer, epoch);
            with_room |= 1u << peer;
            const Coordinates<4> at{0, head % heads, piece % pieces * kPieceRows, head / heads};
            const u64 target = 2 * (kChunks * peer + chunk);
            push_piece(transfers, k, v, targets[target], targets[target + 1], chunk, at);
            wait_group<0>();
            signals.post(peer, signal_of(own.rank, head * per_peer + piece), epoch);
        }
    }

    // Wait for the keys and values of a head from row `first` of the buffer to `end`; return
    // `first`, or the lower row from which on all have arrived.
    __device__ __forceinline__ i32 wait_for_rows(i32 entry, i32 kv_head, i32 first, i32 end) const {
        const i32 head = entry * own.kv_heads() + kv_head;
        while (end > first) {
            const i32 buffer_chunk = (end - 1) / own.chunk_length;
            const i32 row = end - 1 - buffer_chunk * own.chunk_length;
            const i32 piece = row / kPieceRows;
            const i32 chunk = kChunks == 2 && buffer_chunk >= own.ranks;
            signals.wait(
                signal_of(source_of(buffer_chunk), (head * kChunks + chunk) * pieces + piece), epoch
            );
            end = buffer_chunk * own.chunk_length + piece * kPieceRows;
        }
        return end;
    }

private:
    // The rank whose chunk is chunk `buffer_chunk` of the buffer.
    __device__ __forceinline__ i32 source_of(i32 buffer_chunk) const {
        if constexpr (kChunks == 2) return min(buffer_chunk, 2 * own.ranks - 1 - buffer_chunk);
        return (own.rank + own.ranks - 1 - buffer_chunk) % own.ranks;
    }

    template <typename Transfers>
    __device__ __forceinline__ void push_piece(
        Transfers& transfers,
        const PushTile& k,
        const PushTile& v,
        const PushTile& target_k,
        const PushTile& target_v,
        i32 chunk,
        const Coordinates<4>& at
    ) const {
        const i32 rows = min(kPieceRows, own.chunk_length - at.values[2]);
        const auto moved = [&](i32 tile, i32 first_row) {
            Coordinates<4> to = at;
            to.values[2] += first_row + tile / 2 * kPushRows;
            return to;
        };
        // Even tiles are keys, odd ones values.
        transfers.run(
            0, 2 * count_tiles(rows, kPushRows),
            [&](const auto& stage, i32 tile) {
                const PushTile& from = tile % 2 == 0 ? k : v;
                from.async_copy(*stage, stage.full(), moved(tile, chunk * own.chunk_length));
            },
            [&](const auto& stored, i32 tile) {
                const PushTile& to = tile % 2 == 0 ? target_k : target_v;
                to.async_store(stored, moved(tile, 0));
            }
        );
    }
};

}  // namespace tmaasync::kernels::attention
