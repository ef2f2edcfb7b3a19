// A GEMM of several ranks whose results are added: rank r multiplies its own A_r[M, K_r] and B_r,
// and adds up the rows of its shard over all ranks. A rank stores its part of another rank's rows
// into a buffer of that rank by TMA, and announces it. For rows of the own shard the accumulators
// stay in registers: the epilogue waits for the parts of all other ranks and adds them, in a fixed
// order, so that results are deterministic. Tiles, constants and grid are as in gemm.cu or
// scaled_gemm.cu, without split-K and batch. Operands is UnscaledOperands or ScaledOperands.
//
// received_h is half h of the own buffer: a matrix for each rank that sends, the rows of the shard.
// sent[h * ranks + r] is the matrix of this rank in half h of the buffer of rank r. Rounds
// alternate between the halves: a rank that has entered round i is done with the half that round
// i - 1 used, so its peers are at most one round ahead. All CTAs are resident at once, since they
// wait for other ranks.
#pragma once
#include <tmaasync/shards.cuh>
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "config.cuh"

namespace tmaasync::kernels::gemm {

static_assert(SPLIT_K == 1 && !STORES_PARTIALS, "a rank sends the sum over its whole K");

using Element = typename CTile::Element;

// The half of the own buffer that a round uses.
struct Received {
    const Element* first;  // of the matrix of rank 0
    i64 matrix_elements;   // from the matrix of one rank to the next rank's
    i64 row_elements;
};

template <typename Operands>
struct ScatterMemory : Operands::Memory {
    u32 epochs[CONSUMERS];
};

// A tile of a rank's shard, which begins with the shard's rows. `m` is a row of A.
struct ShardTile : OutputTile {
    int owner;
};

// The tiles of all shards, in steps: of every other rank the next `step_rows` rows of its shard,
// then of this rank the rows of the step before. Only the own tiles wait for other ranks, for tiles
// of an earlier step, so that no ranks wait for each other.
struct ShardTiles {
    using Cluster = kernels::gemm::Cluster;
    using Tiles = OutputTiles<kBlockM, BLOCK_N, Cluster, GROUP_M>;

    const Shards& shards;
    int ranks, rank;
    int step_rows;  // whole cluster tiles, or no less than any shard

    __device__ __forceinline__ int count() const {
        int count = 0;
        for (int owner = 0; owner < ranks; ++owner) {
            for (int first = 0; first < shards.rows(owner); first += step_rows) {
                count += tiles_of(owner, first).count();
            }
        }
        return count;
    }

    // No caller asks for a tile beyond the last.
    __device__ __forceinline__ ShardTile at(int index) const {
        int owner = rank, first = 0;
        while (true) {
            owner = owner + 1 == ranks ? 0 : owner + 1;
            const int own_first = owner == rank ? first - step_rows : first;
            const Tiles tiles = tiles_of(owner, own_first);
            if (index < tiles.count()) {
                OutputTile tile = tiles.at(index);
                tile.m += shards.starts[owner] + own_first;
                return {tile, owner};
            }
            index -= tiles.count();
            if (owner == rank) first += step_rows;
        }
    }

private:
    __device__ __forceinline__ Tiles tiles_of(int owner, int first) const {
        const int rows = min(shards.rows(owner) - first, step_rows);
        return {first < 0 ? 0 : max(rows, 0), shards.columns};
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

// The epilogue of a consumer warpgroup: its rows of a tile go to the rank that owns them. Outputs
// has
//
//   store(chunk, at)   store finished rows of the own shard
//   kIsShared          whether they go to all ranks, which wait for them
template <typename OutputEpilogue, typename Outputs>
class ScatterEpilogue {
public:
    __device__ __forceinline__ ScatterEpilogue(
        OutputEpilogue& epilogue,
        const Round& round,
        const Outputs& outputs,
        const TMATensorTileArray<CTile>& sent,
        const Received& received,
        int last,
        int row
    )
        : epilogue_(epilogue),
          round_(round),
          outputs_(outputs),
          sent_(sent),
          add_{received, round, last},
          row_(row) {}

    __device__ __forceinline__ void store(Accumulators& accumulators, const ShardTile& tile) {
        announce();
        const int row = tile.m + row_ - round_.shards.starts[tile.owner];
        if (row >= round_.shards.rows(tile.owner) || tile.n >= round_.shards.columns) return;
        const int slot =
            row / ROWS * count_tiles(round_.shards.columns, BLOCK_N) + tile.n / BLOCK_N;
        if (tile.owner == own_rank()) {
            // A rank that has sent its part has entered this round: its output is free.
            wait_for_peers(slot);
            // Its first barrier comes before the visitor, after these waits.
            const auto send = [&](const auto& chunk, const auto& at) { outputs_.store(chunk, at); };
            write(accumulators, tile, send, add_);
            if constexpr (!Outputs::kIsShared) return;
        } else {
            const u64 index = round_.epoch % 2 * round_.signals.ranks + tile.owner;
            if (leads()) {
                sent_[index];  // makes its map visible
                // A rank that has entered the round before has read what round epoch - 2 sent.
                round_.signals.wait(tile.owner, round_.epoch - 1);
            }
            const CTile& matrix = sent_.at(index);
            const auto send = [&](const auto& chunk, const auto& at) {
                matrix.async_store(chunk, at);
            };
            write(accumulators, tile, send);
        }
        sent_to_ = tile.owner, sent_slot_ = slot;
    }

    // Announce the last tile that was sent, when it is complete: the next main loop has run. Each
    // thread posts to one rank. A loop over the ranks in a branch of one thread would cost the warp
    // the uniform registers of the main loop: 81 instead of 47 instructions (nvcc 13.0).
    __device__ __forceinline__ void announce() {
        if (sent_to_ < 0) return;
        if (leads()) wait_group<0>();
        const int rank = own_rank();
        if (!Outputs::kIsShared || sent_to_ != rank) {
            if (leads()) post(sent_to_, round_.signal_of(rank, sent_slot_));
        } else {
            __syncwarp();
            const int peer = thread_in_warpgroup();
            if (peer < round_.signals.ranks && peer != rank) post(peer, finished(rank, sent_slot_));
        }
        sent_to_ = -1;
    }

    // Wait until the other ranks have stored the rows of their shards into the own output, every
    // step-th slot from `first` on.
    __device__ __forceinline__ void wait_for_finished(int first, int step) const {
        const int across = count_tiles(round_.shards.columns, BLOCK_N);
        for (u32 owner = 0; owner < round_.signals.ranks; ++owner) {
            if (owner == round_.signals.rank) continue;
            const int slots = count_tiles(round_.shards.rows(owner), ROWS) * across;
            for (int slot = first; slot < slots; slot += step) {
                round_.signals.wait(finished(owner, slot), round_.epoch);
            }
        }
    }

private:
    __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }

    __device__ __forceinline__ int own_rank() const { return round_.signals.rank; }

    __device__ __forceinline__ void post(u32 to, u32 signal) const {
        round_.signals.post(to, signal, round_.epoch);
    }

    // The signal for a finished tile of an owner's shard. The first half of the slots is for parts.
    __device__ __forceinline__ u32 finished(u32 owner, int slot) const {
        return round_.signal_of(owner, round_.shards.slots / 2 + slot);
    }

    // Wait for the parts of all other ranks, each in a thread.
    __device__ __forceinline__ void wait_for_peers(int slot) const {
        const int peer = thread_in_warpgroup();
        if (peer >= round_.signals.ranks || peer == own_rank()) return;
        round_.signals.wait(round_.signal_of(peer, slot), round_.epoch);
    }

    // Write rows of the tile's owner; send() gets the coordinates in its shard.
    template <typename Send, typename... Visitors>
    __device__ __forceinline__ void write(
        Accumulators& accumulators,
        const ShardTile& tile,
        const Send& send,
        const Visitors&... visitors
    ) {
        const int first = tile.m - round_.shards.starts[tile.owner];
        const auto send_chunk = [&](const auto& chunk, int row, int column) {
            send(chunk, Coordinates<2>{tile.n + column, first + row});
        };
        epilogue_.write(accumulators, tile, send_chunk, visitors...);
    }

    OutputEpilogue& epilogue_;
    const Round& round_;
    const Outputs& outputs_;
    const TMATensorTileArray<CTile>& sent_;
    AddReceived add_;
    int row_;           // of the consumer in a tile
    int sent_to_ = -1;  // the owner of the tile that is sent and not announced; else negative
    int sent_slot_ = 0;
};

// The parameters of the kernels that are not descriptors.
struct ScatterParameters {
    const TMATensorTileArray<CTile>& sent;
    const Element* received_0;
    const Element* received_1;
    const Signals& signals;
    const Shards& shards;
    u64* rounds;
    i64 matrix_elements;
    i64 row_elements;
    int m;
    int k;
    int step_rows;
};

// The kernel. The descriptors of `tiles` are prefetched.
template <typename Operands, typename Outputs, typename... Tiles>
__device__ __forceinline__ void multiply_and_scatter(
    const ATile& a,
    const Operands& operands,
    const Outputs& outputs,
    const ScatterParameters& given,
    const Tiles&... tiles
) {
    using OutputEpilogue = typename Operands::Memory::OutputEpilogue;
    const StaticScheduler<ShardTiles> schedule(
        {given.shards, static_cast<int>(given.signals.ranks), static_cast<int>(given.signals.rank),
         given.step_rows}
    );
    const int k_blocks = count_tiles(given.k, kBlockK), m = given.m;
    auto& shared = dynamic_shared<ScatterMemory<Operands>>();
    const auto consume = [&](int consumer) {
        wait_for_previous_grids();
        u32& epoch = shared.epochs[consumer];
        const int caller = CONSUMERS * blockIdx.x + consumer, callers = CONSUMERS * gridDim.x;
        const u32 thread = thread_in_warpgroup();
        if (thread == 0) epoch = enter_round(given.rounds, caller, callers);
        NamedBarrier<128>{1u + consumer}.sync();
        const Round round{given.signals, given.shards, epoch};
        if (caller == 0 && thread < given.signals.ranks) round.enter_at(thread);
        const Received received{
            epoch % 2 == 0 ? given.received_0 : given.received_1, given.matrix_elements,
            given.row_elements
        };
        const int row = consumer_row(consumer), last = operands.last_row(m);
        OutputEpilogue epilogue(shared.epilogue[consumer], consumer, row, last);
        ScatterEpilogue<OutputEpilogue, Outputs> scatter(
            epilogue, round, outputs, given.sent, received, last, row
        );
        operands.multiply(
            shared, schedule, k_blocks, consumer,
            [&](Accumulators& accumulators, const ShardTile& tile) {
                scatter.store(accumulators, tile);
            }
        );
        scatter.announce();
        if constexpr (Outputs::kIsShared) {
            scatter.wait_for_finished(128 * caller + thread_in_warpgroup(), 128 * callers);
        }
        epilogue.drain();
    };
    Roles::run(
        shared, [&] { operands.load(shared, part_of_whole(a), schedule, k_blocks, m); }, consume,
        tiles...
    );
}

}  // namespace tmaasync::kernels::gemm
