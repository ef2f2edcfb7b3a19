// All-gather by TMA push: every rank has a shard of the rows of a matrix, and stores it into the
// memory of all ranks.
//
//   PushTile        rows and columns that one TMA store pushes, not swizzled
//   PUSH_STAGES     tiles in flight in a CTA
#pragma once
#include <tmaasync/shards.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/store_ring.cuh>
#include <tmaasync/tmaasync.cuh>

namespace tmaasync::kernels {

// A unit is announced by one signal: 64 rows of a shard by the columns of four push tiles. Smaller
// units let a small matrix occupy more CTAs; larger ones need fewer signals.
constexpr int kUnitRows = 64;
constexpr int kUnitColumns = 4 * PushTile::side(1);
static_assert(kUnitRows % PushTile::side(0) == 0, "a unit consists of whole push tiles");

using PushRing = StoreRing<typename PushTile::Shared, PUSH_STAGES, PUSH_STAGES / 2>;

// A rank's part in one round of an all-gather. The slots of a shard are its units.
struct GatherRound : Round {
    __device__ __forceinline__ GatherRound(const Signals& signals, const Shards& shards, u32 epoch)
        : Round{signals, shards, epoch} {}

    // Push the units blockIdx.x, blockIdx.x + gridDim.x, ... of the own shard; called by one thread
    // of every CTA. The rank itself comes first, then the rank before it, which needs the shard
    // first: ranks start with their own shard and go on with the next rank's. With `interleaves`
    // all ranks get the first columns of all rows before the next columns: for readers of all
    // rows at once. A rank has room once it has entered the round of `free_epoch`.
    // is_skipped(row, rows) says which rows of the shard the rank itself does not need;
    // store_to(peer) returns store(tile, at).
    template <typename IsSkipped, typename StoreTo>
    __device__ __forceinline__ void push(
        PushRing& ring,
        const PushTile& own,
        u32 free_epoch,
        bool interleaves,
        const IsSkipped& is_skipped,
        const StoreTo& store_to
    ) const {
        const int ranks = signals.ranks, rank = signals.rank;
        const int units = this->units(rank), columns = units_along_columns();
        const int row_units = units / max(columns, 1);
        auto transfers = ring.transfers();
        u32 with_room = 0;
        for (int i = blockIdx.x; i < ranks * units; i += gridDim.x) {
            const int before = interleaves ? i / row_units % ranks : i / units;
            const int peer = (rank + ranks - before) % ranks;
            const int row_unit = interleaves ? i % row_units : i % units / columns;
            const int column_unit = interleaves ? i / row_units / ranks : i % columns;
            const int unit = row_unit * columns + column_unit;
            const int row = row_unit * kUnitRows, column = column_unit * kUnitColumns;
            const int rows = min(kUnitRows, shards.rows(rank) - row);
            if (peer == rank && is_skipped(row, rows)) continue;
            if (!(with_room >> peer & 1)) signals.wait(peer, free_epoch);
            with_room |= 1u << peer;
            push_unit(transfers, own, row, column, rows, store_to(peer));
            wait_group<0>();
            signals.post(peer, signal_of(rank, unit), epoch);
        }
    }

    // Wait until the rows from `first` to `end` have arrived, in the units that hold the columns
    // from `column` to `end_column`; by a warp. With kOfScales wait for the scales of these units;
    // a unit of scales has the slot of the unit of rows, `units` further on.
    template <bool kOfScales = false>
    __device__ __forceinline__ void wait_for_rows(
        int first, int end, int column, int end_column
    ) const {
        const int columns = units_along_columns();
        const int first_unit = column / kUnitColumns;
        const int across = count_tiles(min(end_column, shards.columns), kUnitColumns) - first_unit;
        for (u32 source = 0; source < signals.ranks; ++source) {
            const int start = shards.starts[source];
            const int from = max(first - start, 0), last = min(end - start, shards.rows(source));
            if (from >= last) continue;
            const int row = from / kUnitRows, count = count_tiles(last, kUnitRows) - row;
            for (int i = lane_index(); i < count * across; i += 32) {
                const int unit = (row + i / across) * columns + first_unit + i % across;
                const int slots_before = kOfScales ? units(source) : 0;
                signals.wait(signal_of(source, slots_before + unit), epoch);
            }
        }
    }

    // Wait for all units of the other ranks from `first` on, every step-th one.
    __device__ __forceinline__ void wait_for_peers(int first, int step) const {
        for (u32 source = 0; source < signals.ranks; ++source) {
            if (source == signals.rank) continue;
            for (int unit = first; unit < units(source); unit += step) {
                signals.wait(signal_of(source, unit), epoch);
            }
        }
    }

    __device__ __forceinline__ int units_along_columns() const {
        return count_tiles(shards.columns, kUnitColumns);
    }
    __device__ __forceinline__ int units(int rank) const {
        return count_tiles(shards.rows(rank), kUnitRows) * units_along_columns();
    }

private:
    template <typename Transfers, typename Store>
    __device__ __forceinline__ void push_unit(
        Transfers& transfers, const PushTile& own, int row, int column, int rows, const Store& store
    ) const {
        constexpr int kRows = PushTile::side(0), kColumns = PushTile::side(1);
        const int width = min(kUnitColumns, shards.columns - column);
        const int across = count_tiles(width, kColumns);
        const auto at = [&](int tile) {
            return Coordinates<2>{column + tile % across * kColumns, row + tile / across * kRows};
        };
        transfers.run(
            0, count_tiles(rows, kRows) * across,
            [&](const auto& stage, int tile) { own.async_copy(*stage, stage.full(), at(tile)); },
            [&](const auto& stored, int tile) { store(stored, at(tile)); }
        );
    }
};

}  // namespace tmaasync::kernels
