#pragma once

// All-gather + GEMM, for operands with and without scales: all_gather_gemm.cu explains it, and
// all_gather_scaled_gemm.cu what becomes of scales. Operands is UnscaledOperands or ScaledOperands.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "../arrival_ring.cuh"
#include "../gather_round.cuh"
#include "config.cuh"

namespace tmaasync::kernels::gemm {

static_assert(SPLIT_K == 1 && !STORES_PARTIALS, "a tile waits for all columns of its rows");
static_assert(kUnitColumns % kBlockK == 0, "a K block belongs to one unit");

// Columns of a tile's rows for whose arrival the producer waits at once.
constexpr int kWaitColumns = 4 * kUnitColumns;

// A token: the rows of a tile have arrived, in kWaitColumns columns.
using Arrivals = ArrivalRing<32>;

template <typename Operands>
struct GatherMemory : Operands::Memory {
    PushRing push;
    Arrivals arrivals;

    __device__ void init() {
        push.init();
        arrivals.init();
        Operands::Memory::init();
    }
};

// The tiles of the output, in an order that begins with a row of cluster tiles and wraps round.
struct RotatedTiles : OutputTiles<kBlockM, BLOCK_N, Cluster, GROUP_M> {
    static constexpr int kClusterRows = kBlockM * Cluster::kM;

    int first_row;  // a multiple of kClusterRows

    __device__ RotatedTiles(int m, int n, int first_row)
        : OutputTiles(m, n), first_row(first_row / kClusterRows * kClusterRows) {}

    __device__ OutputTile at(int index) const {
        OutputTile tile = OutputTiles::at(index);
        const int rows_before_wrap = m_tiles * kClusterRows - first_row;
        tile.m += tile.m < rows_before_wrap ? first_row : -rows_before_wrap;
        return tile;
    }
};

// The rows of A within the own shard, of m in all.
template <typename Operands>
struct OwnRows {
    int start;
    int end;
    int m;

    __device__ bool has_tile(int row) const { return row >= start && row + kBlockM <= end; }

    // Whether all tiles that load these rows load them from the own shard. The last tile may load
    // the last 64 rows (shifted_row).
    __device__ bool serves(int row, int rows) const {
        const int from = start + row, to = start + row + rows - 1;
        const bool is_shifted = to >= Operands::last_row(m);
        return has_tile(from / kBlockM * kBlockM) && has_tile(to / kBlockM * kBlockM) &&
               !is_shifted;
    }
};

// Pass a token to the producer whenever rows have arrived, in the order of its loads; called by a
// warp. Scales of the own rows arrive like all others.
template <typename Operands, typename Schedule>
__device__ void pass_tokens(
    Arrivals& ring,
    const GatherRound& round,
    const Schedule& schedule,
    const OwnRows<Operands>& own_rows,
    int k
) {
    auto next = Arrivals::State::for_producer();
    for (const auto tile : schedule) {
        const bool is_own = own_rows.has_tile(tile.m);
        if (is_own && !Operands::has_scales()) continue;
        const int m = own_rows.m, first = min(tile.m, Operands::last_row(m));
        const int end = min(tile.m + kBlockM, m);
        for (int column = 0; column < k; column += kWaitColumns) {
            const int end_column = column + kWaitColumns;
            ring.pass(next, [&] {
                if constexpr (Operands::has_scales()) {
                    round.template wait_for_rows<true>(first, end, column, end_column);
                    if (is_own) return;
                }
                round.wait_for_rows(first, end, column, end_column);
            });
        }
    }
}

// The parameters of the kernels, beside the operands.
struct GatherParameters {
    const ATile& own;
    const PushTile& pushed;
    const CTile& c;
    const TMATensorTileArray<ATile>& gathered;
    const TMATensorTileArray<PushTile>& targets;
    const Signals& signals;
    const Shards& shards;
    u64* rounds;
    int m;
    int n;
    int k;
};

// The kernel. operands_of(half) returns the operands of a round that uses this half of the buffer.
// Where they have scales, a warp calls push_scales(round). The descriptors of `tiles` are
// prefetched.
template <typename Operands, typename OperandsOf, typename PushScales, typename... Tiles>
__device__ __forceinline__ void gather_and_multiply(
    const OperandsOf& operands_of,
    const PushScales& push_scales,
    const GatherParameters& given,
    const Tiles&... tiles
) {
    const Signals& signals = given.signals;
    const Shards& shards = given.shards;
    const int m = given.m, n = given.n, k = given.k;
    const OwnRows<Operands> own_rows{
        shards.starts[signals.rank], shards.starts[signals.rank + 1], m
    };
    const StaticScheduler<RotatedTiles> schedule({m, n, own_rows.start});
    const int k_blocks = count_tiles(k, kBlockK);
    auto& shared = dynamic_shared<GatherMemory<Operands>>();
    const auto round_of = [&](int caller) {
        constexpr int kCallers = 3 + Operands::has_scales();
        const u32 epoch =
            enter_round(given.rounds, kCallers * blockIdx.x + caller, kCallers * gridDim.x);
        return GatherRound{signals, shards, epoch};
    };
    const auto produce = [&] {
        const auto round = round_of(0);
        const ATile& arrived = given.gathered[round.epoch % 2];
        auto next = Arrivals::State::for_consumer();
        const auto part_of = [&](const OutputTile& tile, int at_k) {
            const bool begins = at_k % kWaitColumns == 0;
            if (Operands::has_scales() && begins) shared.arrivals.take(next);
            if (own_rows.has_tile(tile.m)) return PartOfA{given.own, tile.m - own_rows.start};
            if (!Operands::has_scales() && begins) shared.arrivals.take(next);
            return PartOfA{arrived, tile.m};
        };
        operands_of(round.epoch % 2).load(shared, part_of, schedule, k_blocks, m);
    };
    const auto push_own_rows = [&](const GatherRound& round) {
        if (blockIdx.x == 0) round.enter();
        const u64 half = round.epoch % 2 * signals.ranks;
        // In up to two waves, tiles of all rows are computed at once.
        const bool interleaves = schedule.tiles.count() <= 2 * Cluster::count();
        round.push(
            shared.push, given.pushed, round.epoch - 1, interleaves,
            [&](int row, int rows) { return own_rows.serves(row, rows); },
            [&](int peer) {
                const PushTile& target = given.targets[half + peer];
                return
                    [&target](const auto& tile, const auto& at) { target.async_store(tile, at); };
            }
        );
    };
    const auto help = [&](int helper) {
        if (helper > 1 + Operands::has_scales()) return;
        wait_for_previous_grids();
        u32 epoch = 0;
        if (lane_index() == 0) epoch = round_of(1 + helper).epoch;
        const GatherRound round{signals, shards, __shfl_sync(0xffffffff, epoch, 0)};
        if (helper == 1) {
            pass_tokens(shared.arrivals, round, schedule, own_rows, k);
        } else if (Operands::has_scales() && helper == 2) {
            push_scales(round);
        } else if (lane_index() == 0) {
            push_own_rows(round);
        }
    };
    const auto consume = [&](int consumer) {
        const int row = consumer_row(consumer), last = Operands::last_row(m);
        typename Operands::Memory::OutputEpilogue epilogue(
            shared.epilogue[consumer], consumer, row, last
        );
        Operands::multiply(
            shared, schedule, k_blocks, consumer, [&](auto& accumulators, const auto& tile) {
                epilogue.store(accumulators, given.c, tile);
            }
        );
        epilogue.drain();
    };
    Roles::run_with_helpers(shared, produce, help, consume, tiles...);
}

}  // namespace tmaasync::kernels::gemm
