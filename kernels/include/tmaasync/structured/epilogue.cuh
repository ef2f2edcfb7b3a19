#pragma once

#include <tmaasync/bulk_group.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/structured/output_chunk.cuh>
#include <tmaasync/structured/shifted_rows.cuh>
#include <tmaasync/structured/store_coordinates.cuh>
#include <tmaasync/structured/visitors.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/warp.cuh>

// The epilogue of a GEMM: apply visitors to the accumulators (CUTLASS's epilogue visitor tree),
// round them, stage them in shared memory, and store them with TMA, chunk by chunk.
namespace tmaasync {

// The epilogue of one consumer warpgroup for tiles of kColumns columns: all four warps call it. It
// uses named barrier 1 + consumer. Chunks cycle through kBuffers staging buffers, across tiles too,
// so that the store of one chunk overlaps the conversion of the next. kAtOnce chunks are converted
// between two barriers: with one buffer per chunk, a tile waits only for the previous tile.
template <
    typename CTile,
    int kColumns,
    OutputMajor kMajor = OutputMajor::kN,
    int kBuffers = 2,
    int kAtOnce = 1>
class Epilogue {
public:
    using Chunk = OutputChunk<CTile, kMajor>;
    static constexpr int kChunkColumns = Chunk::kColumns;
    static constexpr int kChunks = kColumns / kChunkColumns;
    static_assert(kColumns % kChunkColumns == 0, "a tile has whole chunks of columns");
    static_assert(kBuffers >= 1, "a chunk is staged in shared memory");
    static_assert(
        kAtOnce >= 1 && kBuffers % kAtOnce == 0 && kChunks % kAtOnce == 0,
        "the chunks at once divide the buffers, and the chunks of a tile"
    );

    // The staging buffers: one member of the CTA's shared memory per consumer.
    struct Shared {
        typename CTile::Shared chunks[kBuffers];
    };

    // `row` is the consumer's first row in the tile of its CTA. If N is contiguous, accumulators
    // may belong to the 64 rows from shifted_row(row, last) on. Rows before `row` are skipped,
    // because another tile stores them. A visitor that is a function gets the actual row; other
    // visitors get the unshifted tile, and must shift it themselves.
    __device__ __forceinline__ Epilogue(
        Shared& shared, int consumer, int row = 0, int last = kUnshifted
    )
        : shared_(shared), barrier_{1u + consumer}, row_(row), last_(last) {}
    Epilogue(const Epilogue&) = delete;
    Epilogue& operator=(const Epilogue&) = delete;

    // Apply the visitors, then round the accumulators and store them with TMA.
    template <typename Register, int kRowBlocks, typename Tile, typename... Visitors>
    __device__ __forceinline__ void store(
        Register (&accumulators)[kRowBlocks][kColumns / 2],
        const CTile& c,
        const Tile& tile,
        const Visitors&... visitors
    ) {
        const auto send = [&](const auto& chunk, int row, int column) {
            issue_at<CTile, kMajor>(tile, row, column, [&](const auto&... at) {
                c.async_store(chunk, at...);
            });
        };
        write(accumulators, tile, send, visitors...);
    }

    // The same, but reduce the accumulators into the output, by default with an addition, in the
    // arithmetic of the output's type (cp.reduce.async.bulk).
    template <
        ReduceOp kOp = ReduceOp::kAdd,
        typename Register,
        int kRowBlocks,
        typename Tile,
        typename... Visitors>
    __device__ __forceinline__ void reduce(
        Register (&accumulators)[kRowBlocks][kColumns / 2],
        const CTile& c,
        const Tile& tile,
        const Visitors&... visitors
    ) {
        const auto send = [&](const auto& chunk, int row, int column) {
            issue_at<CTile, kMajor>(tile, row, column, [&](const auto&... at) {
                c.template async_reduce<kOp>(chunk, at...);
            });
        };
        write(accumulators, tile, send, visitors...);
    }

    // The general form: one thread calls send(chunk, row, column) for every chunk; row and column
    // count from the start of the CTA's tile. send() issues bulk copies from shared memory, for
    // example to several outputs or to remote memory, which are committed afterwards.
    template <typename Register, int kRowBlocks, typename Tile, typename Send, typename... Visitors>
    __device__ __forceinline__ void write(
        Register (&accumulators)[kRowBlocks][kColumns / 2],
        const Tile& tile,
        const Send& send,
        const Visitors&... visitors
    ) {
        static_assert(
            are_ordered<Register, kRowBlocks, Tile, Visitors...>(),
            "apply() of all visitors comes before apply_chunk() of the first: list them in this "
            "order"
        );
        (visit_tile(visitors, accumulators, tile), ...);
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
            const int row = row_ + row_block * Chunk::kRows;
            write_row_block<kRowBlocks>(accumulators[row_block], tile, row, send, visitors...);
        }
    }

    // Wait until TMA has read the staging buffers, before the CTA exits or reuses them.
    __device__ __forceinline__ void drain() const {
        if (leads()) wait_group_read<0>();
    }

private:
    __device__ __forceinline__ static bool leads() { return threadIdx.x % 128 == 0; }

    template <typename Tile>
    __device__ __forceinline__ static Tile moved(Tile tile, int rows, int columns) {
        tile.m += rows;
        tile.n += columns;
        return tile;
    }

    template <typename Visitor, typename Register, int kRowBlocks, typename Tile>
    using VisitsOf =
        Visits<Visitor, Register[kRowBlocks][kColumns / 2], Register, kChunkColumns / 2, Tile>;

    // Whether visitors are applied in the order of the list.
    template <typename Register, int kRowBlocks, typename Tile, typename... Visitors>
    __device__ static constexpr bool are_ordered() {
        bool seen_chunks = false, ordered = true;
        ((ordered =
              ordered && !(seen_chunks && VisitsOf<Visitors, Register, kRowBlocks, Tile>::kTiles),
          seen_chunks = seen_chunks || VisitsOf<Visitors, Register, kRowBlocks, Tile>::kChunks ||
                        VisitsOf<Visitors, Register, kRowBlocks, Tile>::kElements),
         ...);
        return ordered;
    }

    template <typename Visitor, typename Register, int kRowBlocks, typename Tile>
    __device__ __forceinline__ void visit_tile(
        const Visitor& visitor, Register (&accumulators)[kRowBlocks][kColumns / 2], const Tile& tile
    ) const {
        if constexpr (VisitsOf<Visitor, Register, kRowBlocks, Tile>::kTiles) {
            visitor.apply(accumulators, moved(tile, row_, 0));
        }
    }

    template <int kRowBlocks, typename Visitor, typename Register, typename Tile>
    __device__ __forceinline__ static void visit_chunk(
        const Visitor& visitor, Register (&chunk)[kChunkColumns / 2], const Tile& tile, int before
    ) {
        using Visited = VisitsOf<Visitor, Register, kRowBlocks, Tile>;
        if constexpr (Visited::kChunks) visitor.apply_chunk(chunk, tile);
        if constexpr (Visited::kElements) visit_elements(visitor, chunk, tile, before);
    }

    template <typename Visitor, typename Register, typename Tile>
    __device__ __forceinline__ static void visit_elements(
        const Visitor& visitor, Register (&chunk)[kChunkColumns / 2], const Tile& tile, int before
    ) {
        const int thread = thread_in_warpgroup();
#pragma unroll
        for (int i = 0; i < kChunkColumns / 2; ++i) {
            const int row = tile.m - before + accumulator_row(thread, i);
            chunk[i] = visitor(chunk[i], row, tile.n + accumulator_column(thread, i));
        }
    }

    template <int kRowBlocks, typename Register, typename Tile, typename Send, typename... Visitors>
    __device__ __forceinline__ void write_row_block(
        Register (&accumulators)[kColumns / 2],
        const Tile& tile,
        int row,
        const Send& send,
        const Visitors&... visitors
    ) {
        using Accumulators = Register[kChunkColumns / 2];
        const bool is_leader = leads();
        const int before = Chunk::kIsNMajor ? shifted_by(tile.m + row, last_) : 0;
        const auto staged = [&](int i) -> typename CTile::Shared& {
            return shared_.chunks[kAtOnce == kBuffers ? i : (chunks_ + i) % kBuffers];
        };
#pragma unroll
        for (int first = 0; first < kChunks; first += kAtOnce, chunks_ += kAtOnce) {
            // Wait until earlier stores have read these buffers.
            if (is_leader) wait_group_read<kBuffers / kAtOnce - 1>();
            barrier_.sync();
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int column = (first + i) * kChunkColumns;
                auto& chunk = *reinterpret_cast<Accumulators*>(accumulators + column / 2);
                (visit_chunk<kRowBlocks>(visitors, chunk, moved(tile, row, column), before), ...);
                Chunk::write(staged(i), chunk, before);
            }
            fence_async_view_proxy();
            barrier_.sync();
            if (is_leader) {
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    send(staged(i), row, (first + i) * kChunkColumns);
                }
                commit_group();
            }
        }
    }

    Shared& shared_;
    NamedBarrier<128> barrier_;
    int row_;
    int last_;
    u32 chunks_ = 0;
};

}  // namespace tmaasync
