// Ragged all-to-all: every rank has rows (tokens) in the order of the experts that they go to, and
// every rank owns an equal share of the experts. Dispatch stores the rows into the packed rows of
// the experts' owner, which are in the order of its experts, then of the source ranks. Combine
// stores them back. TMA clips every segment, the rows of one source rank and one expert, at its
// end.
//
//   Rows           RaggedTensorMap of an array: (rows, columns), not swizzled
//   STAGES         pipeline stages
//
// The ranks exchange their counts first, and each computes all segments from the counts of all. A
// segment with no room in the array of an expert's owner is cut or left out. When the kernel ends,
// all rows have arrived. All CTAs are resident at once, since they wait for other ranks, and all
// ranks have as many.
#include <tmaasync/shards.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/store_ring.cuh>
#include <tmaasync/tmaasync.cuh>

#include "rank_tiles.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;

constexpr int kThreads = 128;
constexpr int kMaxExperts = 1024;
constexpr int kTileRows = Rows::kRows;
constexpr int kTileColumns = Rows::side(1);

// Parameters that the host packs.
struct Buffers {
    i32* of[8];  // the counts of all ranks in the memory of each rank: two, for rounds in turn
};
struct Sizes {
    i32 experts;      // of all ranks
    i32 token_rows;   // of this rank's tokens
    i32 half;         // elements of one buffer
    i32 is_combined;  // whether the rows go back
};

// The segments that this rank sends, and where the tiles of each start in the order in which this
// rank sends them.
struct Segments {
    i32 loaded[kMaxExperts], stored[kMaxExperts], rows[kMaxExperts];
    i32 first_tile[kMaxExperts];
    i32 tiles;
};
struct SharedMemory {
    StoreRing<typename Rows::Shared, STAGES, STAGES / 2> ring;
    Segments segments;
    u32 epoch;
};
extern "C" __device__ const int all_to_all_shared_bytes = sizeof(SharedMemory);

// Call use(i, start) with the sum of the values before value(i), for all i; by a warp. Return the
// sum of all.
template <typename Value, typename Use>
__device__ i64 scan(int count, const Value& value, const Use& use) {
    i64 before = 0;
    for (int first = 0; first < count; first += 32) {
        const int i = first + static_cast<int>(lane_index());
        const i64 own = i < count ? value(i) : 0;
        i64 sum = own;
        for (u32 step = 1; step < 32; step *= 2) {
            const i64 other = __shfl_up_sync(0xffffffff, sum, step);
            if (lane_index() >= step) sum += other;
        }
        if (i < count) use(i, before + sum - own);
        before += __shfl_sync(0xffffffff, sum, 31);
    }
    return before;
}

// A rank's part in one round of an exchange.
struct Exchange : Round {
    const Buffers& buffers;
    const Sizes& sizes;

    __device__ Exchange(
        const Signals& signals,
        const Shards& shards,
        u32 epoch,
        const Buffers& buffers,
        const Sizes& sizes
    )
        : Round{signals, shards, epoch}, buffers(buffers), sizes(sizes) {}

    __device__ int ranks() const { return signals.ranks; }
    __device__ int rank() const { return signals.rank; }
    __device__ int owned() const { return sizes.experts / ranks(); }

    // The counts of all ranks in the memory of a rank, sizes.experts of each source rank.
    __device__ i32* counts_of(int rank) const { return buffers.of[rank] + epoch % 2 * sizes.half; }

    // Send this rank's counts to all ranks, cut to its rows, and enter the round; by a warp. A rank
    // that has entered the round before has read this buffer.
    __device__ void publish(const i32* counts) const {
        if (lane_index() < ranks()) signals.wait(lane_index(), epoch - 1);
        __syncwarp();
        scan(
            sizes.experts, [&](int expert) { return i64{max(counts[expert], 0)}; },
            [&](int expert, i64 start) {
                const i64 end = min(start + max(counts[expert], 0), i64{sizes.token_rows});
                const i32 rows = static_cast<i32>(max(end - start, i64{0}));
                for (int peer = 0; peer < ranks(); ++peer) {
                    counts_of(peer)[rank() * sizes.experts + expert] = rows;
                }
            }
        );
        __syncwarp();
        if (lane_index() < ranks()) signals.post(lane_index(), rank(), epoch);
    }

    // Wait until all ranks have entered: their arrays are complete, and their outputs free.
    __device__ void wait_for_counts() const {
        if (threadIdx.x < ranks()) signals.wait(threadIdx.x, epoch);
        __syncthreads();
        ptx::fence_proxy_async_global();
    }

    __device__ i32 count(int source, int expert) const {
        return counts_of(rank())[source * sizes.experts + expert];
    }

    // Call use(expert, start) for the rows of a rank's tokens; by a warp.
    template <typename Use>
    __device__ void for_tokens(int source, const Use& use) const {
        scan(
            sizes.experts, [&](int expert) { return i64{count(source, expert)}; },
            [&](int expert, i64 start) { use(expert, static_cast<i32>(start)); }
        );
    }

    // Call use(expert, source, start, rows) for the packed rows of an owner's experts, counted from
    // its first one; by a warp.
    template <typename Use>
    __device__ void for_packed(int owner, const Use& use) const {
        const i64 room = shards.rows(owner);
        const auto rows = [&](int i) {
            return i64{count(i % ranks(), owner * owned() + i / ranks())};
        };
        scan(sizes.experts, rows, [&](int i, i64 start) {
            const i64 first = min(start, room), end = min(start + rows(i), room);
            use(i / ranks(), i % ranks(), static_cast<i32>(first), static_cast<i32>(end - first));
        });
    }

    // Find this rank's segments: to expert i in a dispatch; in a combine, of its own experts, each
    // to all ranks. By all threads. Write where the rows of each own expert end, if it is a
    // dispatch.
    __device__ void find(Segments& segments, i32* ends) const {
        for (int task = warp_index(); task <= ranks(); task += kThreads / 32) {
            if (sizes.is_combined) {
                find_combined(segments, task);
            } else {
                find_dispatched(segments, task, ends);
            }
        }
        __syncthreads();
        if (warp_index() == 0) {
            const i64 tiles = scan(
                sizes.experts,
                [&](int i) { return i64{count_tiles(segments.rows[in_turn(i)], kTileRows)}; },
                [&](int i, i64 start) { segments.first_tile[i] = static_cast<i32>(start); }
            );
            if (lane_index() == 0) segments.tiles = static_cast<i32>(tiles);
            __syncwarp();
        }
    }

    // Move the tiles blockIdx.x, blockIdx.x + gridDim.x, ...; by one thread. store(peer) returns
    // store(tile, sequence, at).
    template <typename Ring, typename Store>
    __device__ void move(
        Ring& ring, const Segments& segments, const Rows& own, const Store& store
    ) const {
        const int across = count_tiles(shards.columns, kTileColumns);
        const i64 count = i64{segments.tiles} * across;
        const i64 mine = count > blockIdx.x ? (count - blockIdx.x - 1) / gridDim.x + 1 : 0;
        // Call use(segment, at) for a tile of this CTA.
        const auto locate = [&](i64 index, const auto& use) {
            const i64 tile = blockIdx.x + index * gridDim.x;
            const i32 row = static_cast<i32>(tile / across);
            int low = 0, high = sizes.experts;  // the last segment that starts at or before it
            while (high - low > 1) {
                const int middle = (low + high) / 2;
                (segments.first_tile[middle] <= row ? low : high) = middle;
            }
            const i32 column = static_cast<i32>(tile % across) * kTileColumns;
            use(in_turn(low), Coordinates<2>{column, (row - segments.first_tile[low]) * kTileRows});
        };
        ring.transfers().run(
            i64{0}, mine,
            [&](const auto& stage, i64 index) {
                locate(index, [&](int i, const auto& at) {
                    const RaggedSequence rows{segments.loaded[i], segments.rows[i]};
                    own.async_copy(*stage, stage.full(), rows, at);
                });
            },
            [&](const auto& tile, i64 index) {
                locate(index, [&](int i, const auto& at) {
                    const RaggedSequence rows{segments.stored[i], segments.rows[i]};
                    store(sizes.is_combined ? i % ranks() : i / owned(), tile, rows, at);
                });
            }
        );
    }

    // Wait until the rows from all ranks have arrived; by the thread that has moved.
    __device__ void finish() const {
        wait_group<0>();
        for (int peer = 0; peer < ranks(); ++peer) {
            if (peer != rank()) signals.post(peer, signal_of(rank(), blockIdx.x), epoch);
        }
        for (int peer = 0; peer < ranks(); ++peer) {
            if (peer != rank()) signals.wait(signal_of(peer, blockIdx.x), epoch);
        }
    }

private:
    // The segment that this rank sends i-th: one to each rank, beginning with the next rank, and so
    // on, so that all links are busy to the end.
    __device__ int in_turn(int i) const {
        const int peer = (i + rank() + 1) % ranks(), own = i / ranks();
        return sizes.is_combined ? own * ranks() + peer : peer * owned() + own;
    }

    __device__ void find_dispatched(Segments& segments, int task, i32* ends) const {
        if (task == ranks()) {
            for_tokens(rank(), [&](int expert, i32 start) { segments.loaded[expert] = start; });
            return;
        }
        for_packed(task, [&](int expert, int source, i32 start, i32 rows) {
            if (source == rank()) {
                segments.stored[task * owned() + expert] = start;
                segments.rows[task * owned() + expert] = rows;
            }
            const bool is_last = task == rank() && source == ranks() - 1;
            if (is_last && ends && blockIdx.x == 0) ends[expert] = start + rows;
        });
    }

    __device__ void find_combined(Segments& segments, int task) const {
        if (task == ranks()) {
            for_packed(rank(), [&](int expert, int source, i32 start, i32 rows) {
                segments.loaded[expert * ranks() + source] = start;
                segments.rows[expert * ranks() + source] = rows;
            });
            return;
        }
        for_tokens(task, [&](int expert, i32 start) {
            const int own = expert - rank() * owned();
            if (0 <= own && own < owned()) segments.stored[own * ranks() + task] = start;
        });
    }
};

extern "C" __global__ void __launch_bounds__(kThreads) all_to_all(
    const __grid_constant__ Rows own,
    const __grid_constant__ Rows target_0,
    const __grid_constant__ Rows target_1,
    const __grid_constant__ Rows target_2,
    const __grid_constant__ Rows target_3,
    const __grid_constant__ Rows target_4,
    const __grid_constant__ Rows target_5,
    const __grid_constant__ Rows target_6,
    const __grid_constant__ Rows target_7,
    const i32* counts,
    i32* ends,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    const __grid_constant__ Buffers buffers,
    const __grid_constant__ Sizes sizes
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.ring.init();
        shared.epoch = enter_round(rounds, blockIdx.x, gridDim.x);
    }
    __syncthreads();
    const Exchange exchange{signals, shards, shared.epoch, buffers, sizes};
    if (blockIdx.x == 0 && warp_index() == 0) exchange.publish(counts);
    exchange.wait_for_counts();
    exchange.find(shared.segments, ends);
    if (warp_index() != 0 || !elect()) return;
    exchange.move(
        shared.ring, shared.segments, own,
        [&](int peer, const auto& tile, const RaggedSequence& rows, const auto& at) {
            const auto store = [&](const Rows& target) { target.async_store(tile, rows, at); };
            with_tile_of(
                peer, store, target_0, target_1, target_2, target_3, target_4, target_5, target_6,
                target_7
            );
        }
    );
    exchange.finish();
}
