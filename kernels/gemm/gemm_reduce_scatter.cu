// GEMM + reduce-scatter: rank r multiplies its own A_r[M, K_r] B_r[K_r, N], and receives the rows
// of its shard of the sum over all ranks. A rank stores its part of another rank's rows into a
// buffer of that rank by TMA, and announces it. For rows of the own shard the accumulators stay in
// registers: the epilogue waits for the parts of all other ranks and adds them, in a fixed order,
// so that results are deterministic. Tiles, constants and grid are as in gemm.cu, without split-K
// and batch.
//
// received_h is half h of the own buffer: a matrix for each rank that sends, the rows of the shard.
// sent[h * ranks + r] is the matrix of this rank in half h of the buffer of rank r. Rounds
// alternate between the halves: a rank that has entered round i is done with the half that round
// i - 1 used, so its peers are at most one round ahead. All CTAs are resident at once, since they
// wait for other ranks.
#include <tmaasync/shards.cuh>
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "consumer.cuh"
#include "producer.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

static_assert(SPLIT_K == 1 && !STORES_PARTIALS, "a rank sends the sum over its whole K");

using Element = typename CTile::Element;

// The half of the own buffer that a round uses.
struct Received {
    const Element* first;  // of the matrix of rank 0
    i64 matrix_elements;   // from the matrix of one rank to the next rank's
    i64 row_elements;
};

struct ScatterMemory : SharedMemory {
    u32 epochs[CONSUMERS];
};
extern "C" __device__ const int gemm_reduce_scatter_shared_bytes = sizeof(ScatterMemory);

// A tile of a rank's shard, which begins with the shard's rows. `m` is a row of A.
struct ShardTile : OutputTile {
    int owner;
};

// The tiles of all shards: first the next rank's, then the one's after it, and the own shard last.
// Only its tiles wait for other ranks, so that no ranks wait for each other.
struct ShardTiles {
    using Cluster = kernels::gemm::Cluster;
    using Tiles = OutputTiles<kBlockM, BLOCK_N, Cluster, GROUP_M>;

    const Shards& shards;
    int ranks, rank;

    __device__ __forceinline__ Tiles tiles_of(int owner) const {
        return {shards.rows(owner), shards.columns};
    }

    __device__ __forceinline__ int count() const {
        int count = 0;
        for (int owner = 0; owner < ranks; ++owner) count += tiles_of(owner).count();
        return count;
    }

    __device__ __forceinline__ ShardTile at(int index) const {
        int owner = rank;
        do {
            owner = owner + 1 == ranks ? 0 : owner + 1;
            const Tiles tiles = tiles_of(owner);
            if (index < tiles.count()) {
                OutputTile tile = tiles.at(index);
                tile.m += shards.starts[owner];
                return {tile, owner};
            }
            index -= tiles.count();
        } while (owner != rank);
        return {{0, 0, 0}, rank};  // no caller asks for a tile beyond the last
    }
};

// A visitor that adds the parts of the other ranks, in the order of their ranks.
struct AddReceived {
    Received received;
    const Round& round;
    int last;  // as in Epilogue

    template <int kCount, typename Tile>
    __device__ __forceinline__ void apply_chunk(float (&chunk)[kCount], const Tile& tile) const {
        const u32 ranks = round.signals.ranks, rank = round.signals.rank;
        const int rows = round.shards.rows(rank), thread = thread_in_warpgroup();
        // Rows before the first belong to another tile.
        const int first = tile.m - round.shards.starts[rank];
        const int start = first - shifted_by(tile.m, last);
        const Element* matrix = received.first;
#pragma unroll 1
        for (u32 source = 0; source < ranks; ++source, matrix += received.matrix_elements) {
            if (source == rank) continue;
#pragma unroll
            for (int i = 0; i < kCount; i += 2) {
                const int row = start + accumulator_row(thread, i);
                const int column = tile.n + accumulator_column(thread, i);
                if (row < first || row >= rows || column >= round.shards.columns) continue;
                const float2 pair = load_pair(matrix + row * received.row_elements + column);
                chunk[i] += pair.x;
                chunk[i + 1] += pair.y;
            }
        }
    }

private:
    __device__ __forceinline__ static float2 load_pair(const Element* at) {
        if constexpr (sizeof(Element) == 2) {
            return unpack_pair<Element>(*reinterpret_cast<const u32*>(at));
        } else {
            return *reinterpret_cast<const float2*>(at);
        }
    }
};

// The epilogue of a consumer warpgroup: its rows of a tile go to the rank that owns them.
class ScatterEpilogue {
public:
    __device__ __forceinline__ ScatterEpilogue(
        TileEpilogue& epilogue,
        const Round& round,
        const CTile& own,
        const TMATensorTileArray<CTile>& sent,
        const Received& received,
        int m,
        int row
    )
        : epilogue_(epilogue),
          round_(round),
          own_(own),
          sent_(sent),
          add_{received, round, last_row(m)},
          row_(row) {}

    __device__ __forceinline__ void store(Accumulators& accumulators, const ShardTile& tile) {
        announce();
        const int row = tile.m + row_ - round_.shards.starts[tile.owner];
        if (row >= round_.shards.rows(tile.owner) || tile.n >= round_.shards.columns) return;
        const int slot =
            row / ROWS * count_tiles(round_.shards.columns, BLOCK_N) + tile.n / BLOCK_N;
        if (tile.owner == static_cast<int>(round_.signals.rank)) {
            if (leads()) wait_for_all(slot);
            // Its first barrier comes before the visitor, after the leader's waits.
            write(accumulators, own_, tile, add_);
        } else {
            const u64 index = round_.epoch % 2 * round_.signals.ranks + tile.owner;
            if (leads()) {
                sent_[index];  // makes its map visible
                // A rank that has entered the round before has read what round epoch - 2 sent.
                round_.signals.wait(tile.owner, round_.epoch - 1);
                sent_to_ = tile.owner, sent_slot_ = slot;
            }
            write(accumulators, sent_.at(index), tile);
        }
    }

    // Announce the last part that was sent, when it is complete: the next main loop has run.
    __device__ __forceinline__ void announce() {
        if (!leads() || sent_to_ < 0) return;
        wait_group<0>();
        const u32 signal = round_.signal_of(round_.signals.rank, sent_slot_);
        round_.signals.post(sent_to_, signal, round_.epoch);
        sent_to_ = -1;
    }

private:
    __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }

    __device__ __forceinline__ void wait_for_all(int slot) const {
        for (u32 source = 0; source < round_.signals.ranks; ++source) {
            if (source == round_.signals.rank) continue;
            round_.signals.wait(round_.signal_of(source, slot), round_.epoch);
        }
    }

    // Write into a matrix that holds the rows of the tile's owner.
    template <typename... Visitors>
    __device__ __forceinline__ void write(
        Accumulators& accumulators,
        const CTile& matrix,
        const ShardTile& tile,
        const Visitors&... visitors
    ) {
        const int first = tile.m - round_.shards.starts[tile.owner];
        const auto send = [&](const auto& chunk, int row, int column) {
            matrix.async_store(chunk, Coordinates<2>{tile.n + column, first + row});
        };
        epilogue_.write(accumulators, tile, send, visitors...);
    }

    TileEpilogue& epilogue_;
    const Round& round_;
    const CTile& own_;
    const TMATensorTileArray<CTile>& sent_;
    AddReceived add_;
    int row_;           // of the consumer in a tile
    int sent_to_ = -1;  // the rank to which something was sent that is not announced; else negative
    int sent_slot_ = 0;
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm_reduce_scatter(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const TMATensorTileArray<CTile> sent,
    const Element* received_0,
    const Element* received_1,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    i64 matrix_elements,
    i64 row_elements,
    int m,
    int k
) {
    const StaticScheduler<ShardTiles> schedule(
        {shards, static_cast<int>(signals.ranks), static_cast<int>(signals.rank)}
    );
    const int k_blocks = count_tiles(k, kBlockK);
    auto& shared = dynamic_shared<ScatterMemory>();
    const auto consume = [&](int consumer) {
        wait_for_previous_grids();
        u32& epoch = shared.epochs[consumer];
        if (thread_in_warpgroup() == 0) {
            const int caller = CONSUMERS * blockIdx.x + consumer;
            epoch = enter_round(rounds, caller, CONSUMERS * gridDim.x);
            if (caller == 0) Round{signals, shards, epoch}.enter();
        }
        NamedBarrier<128>{1u + consumer}.sync();
        const Round round{signals, shards, epoch};
        const Received received{
            epoch % 2 == 0 ? received_0 : received_1, matrix_elements, row_elements
        };
        const int row = consumer_row(consumer);
        TileEpilogue epilogue(shared.epilogue[consumer], consumer, row, last_row(m));
        ScatterEpilogue scatter(epilogue, round, c, sent, received, m, row);
        auto stages = shared.ring.consumer<Proxy::kAsync>();
        multiply_and_store<Loop>(
            stages, schedule, k_blocks, consumer,
            [&](Accumulators& accumulators, const ShardTile& tile) {
                scatter.store(accumulators, tile);
            }
        );
        scatter.announce();
        epilogue.drain();
    };
    Roles::run(
        shared, [&] { load_tiles(shared, part_of_whole(a), b, schedule, k_blocks, m); }, consume, a,
        b, c
    );
}
