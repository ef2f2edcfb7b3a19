// All-gather + GEMM: C[M, N] = A[M, K] B[K, N], where every rank has a shard of the rows of A and
// its own B. One warp of each CTA pushes the own shard into the buffers of all ranks
// (gather_round.cuh). The producer loads tiles within the own shard from there. For all others it
// waits until another warp, whose lanes look at many signals at once, has seen that they arrived.
// Tiles, constants and grid are as in gemm.cu, without split-K and batch. In addition:
//
//   PushTile, PUSH_STAGES    see gather_round.cuh
//
// gathered[h] is A in half h of the own buffer; targets[h * ranks + r] has the rows of the own
// shard in half h of the buffer of rank r. Rounds alternate between the halves: a rank that has
// entered round i is done with the half that round i - 1 used, so its peers are at most one round
// ahead. All CTAs are resident at once, since they wait for other ranks. CTAs without a tile still
// push.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "../arrival_ring.cuh"
#include "../gather_round.cuh"
#include "consumer.cuh"
#include "producer.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;
using namespace tmaasync::kernels::gemm;

static_assert(SPLIT_K == 1 && !STORES_PARTIALS, "a tile waits for all columns of its rows");
static_assert(kUnitColumns % kBlockK == 0, "a K block belongs to one unit");

// Columns of a tile's rows for whose arrival the producer waits at once.
constexpr int kWaitColumns = 4 * kUnitColumns;

// A token: the rows of a tile have arrived, in kWaitColumns columns.
using Arrivals = ArrivalRing<32>;

struct GatherMemory : SharedMemory {
    PushRing push;
    Arrivals arrivals;

    __device__ void init() {
        push.init();
        arrivals.init();
        SharedMemory::init();
    }
};
extern "C" __device__ const int all_gather_gemm_shared_bytes = sizeof(GatherMemory);

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
struct OwnRows {
    int start;
    int end;
    int m;

    __device__ bool has_tile(int row) const { return row >= start && row + kBlockM <= end; }

    // Whether all tiles that load these rows load them from the own shard. The last tile may load
    // the last 64 rows (shifted_row).
    __device__ bool serves(int row, int rows) const {
        const int first = start + row, last = start + row + rows - 1;
        const bool is_shifted = last >= last_row(m);
        return has_tile(first / kBlockM * kBlockM) && has_tile(last / kBlockM * kBlockM) &&
               !is_shifted;
    }
};

// Pass a token to the producer whenever rows have arrived, in the order of its loads; called by a
// warp.
template <typename Schedule>
__device__ void pass_tokens(
    Arrivals& ring,
    const GatherRound& round,
    const Schedule& schedule,
    const OwnRows& own_rows,
    int k
) {
    auto next = Arrivals::State::for_producer();
    for (const auto tile : schedule) {
        if (own_rows.has_tile(tile.m)) continue;
        const int m = own_rows.m, first = min(tile.m, last_row(m)), end = min(tile.m + kBlockM, m);
        for (int column = 0; column < k; column += kWaitColumns) {
            ring.pass(next, [&] {
                round.wait_for_rows(first, end, column, column + kWaitColumns);
            });
        }
    }
}

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) all_gather_gemm(
    const __grid_constant__ ATile own,
    const __grid_constant__ PushTile pushed,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const TMATensorTileArray<ATile> gathered,
    const TMATensorTileArray<PushTile> targets,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    int m,
    int n,
    int k
) {
    const OwnRows own_rows{shards.starts[signals.rank], shards.starts[signals.rank + 1], m};
    const StaticScheduler<RotatedTiles> schedule({m, n, own_rows.start});
    const int k_blocks = count_tiles(k, kBlockK);
    auto& shared = dynamic_shared<GatherMemory>();
    const auto round_of = [&](int caller) {
        const u32 epoch = enter_round(rounds, 3 * blockIdx.x + caller, 3 * gridDim.x);
        return GatherRound{signals, shards, epoch};
    };
    const auto produce = [&] {
        const auto round = round_of(0);
        const ATile& arrived = gathered[round.epoch % 2];
        auto next = Arrivals::State::for_consumer();
        const auto part_of = [&](const OutputTile& tile, int at_k) {
            if (own_rows.has_tile(tile.m)) return PartOfA{own, tile.m - own_rows.start};
            if (at_k % kWaitColumns == 0) shared.arrivals.take(next);
            return PartOfA{arrived, tile.m};
        };
        load_tiles(shared, part_of, b, schedule, k_blocks, m);
    };
    const auto push_own_rows = [&](const GatherRound& round) {
        if (blockIdx.x == 0) round.enter();
        const u64 half = round.epoch % 2 * signals.ranks;
        // In up to two waves, tiles of all rows are computed at once.
        const bool interleaves = schedule.tiles.count() <= 2 * Cluster::count();
        round.push(
            shared.push, pushed, round.epoch - 1, interleaves,
            [&](int row, int rows) { return own_rows.serves(row, rows); },
            [&](int peer) {
                const PushTile& target = targets[half + peer];
                return
                    [&target](const auto& tile, const auto& at) { target.async_store(tile, at); };
            }
        );
    };
    const auto help = [&](int helper) {
        if (helper > 1) return;
        wait_for_previous_grids();
        u32 epoch = 0;
        if (lane_index() == 0) epoch = round_of(1 + helper).epoch;
        const GatherRound round{signals, shards, __shfl_sync(0xffffffff, epoch, 0)};
        if (helper == 1) {
            pass_tokens(shared.arrivals, round, schedule, own_rows, k);
        } else if (lane_index() == 0) {
            push_own_rows(round);
        }
    };
    const auto consume = [&](int consumer) {
        auto stages = shared.ring.consumer<Proxy::kAsync>();
        multiply_tiles<Loop>(shared, stages, c, schedule, k_blocks, consumer, last_row(m));
    };
    Roles::run_with_helpers(shared, produce, help, consume, own, pushed, b, c);
}
