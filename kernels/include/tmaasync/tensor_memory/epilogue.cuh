#pragma once

#include <tmaasync/bulk_group.cuh>
#include <tmaasync/fragment.cuh>
#include <tmaasync/pipeline.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/structured/store_coordinates.cuh>
#include <tmaasync/tensor_memory/accumulator_ring.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/warp.cuh>

namespace tmaasync {

// The epilogue of a warpgroup whose accumulators lie in tensor memory: a thread loads its row,
// chunk by chunk, rounds it, and stages it in shared memory for TMA. CTile is a chunk: 128 rows by
// the columns of one box, 128, 64 or 32 bytes wide with the swizzle of that width. Chunks cycle
// through kBuffers staging buffers. It uses a named barrier, 1 by default.
template <typename CTile, int kBuffers = 2>
class TmemEpilogue {
public:
    using Element = typename CTile::Element;
    static constexpr int kChunkColumns = CTile::side(CTile::kRank - 1);
    static_assert(CTile::side(CTile::kRank - 2) == 128, "a chunk has a row for each lane");
    static_assert(CTile::kBoxes == 1, "a chunk is one box");
    static_assert(sizeof(Element) == 2 || sizeof(Element) == 4, "outputs have 16 or 32 bits");

    // The staging buffers: a member of the CTA's shared memory. One thread calls init().
    struct Shared {
        typename CTile::Shared chunks[kBuffers];
        SharedMemBarrier loaded[kBuffers];  // of store_with_source()

        __device__ __forceinline__ void init() {
            for (auto& barrier : loaded) barrier.init(1);
            fence_barrier_init();
        }
    };

    __device__ __forceinline__ explicit TmemEpilogue(Shared& shared, u32 barrier = 1)
        : shared_(shared), barrier_{barrier} {}
    TmemEpilogue(const TmemEpilogue&) = delete;
    TmemEpilogue& operator=(const TmemEpilogue&) = delete;

    // Store the next accumulators of a ring, and release them when they are in registers. A visitor
    // is a function (value, row, column) -> value, which is applied before rounding.
    template <typename Ring, typename Tile, typename... Visitors>
    __device__ __forceinline__ void store(
        AccumulatorConsumer<Ring>& accumulators,
        const CTile& c,
        const Tile& tile,
        const Visitors&... visitors
    ) {
        for_each_chunk(accumulators, [&](auto& values, int column) {
            const int row = tile.m + thread_in_warpgroup();
#pragma unroll
            for (int i = 0; i < kChunkColumns; ++i) {
                ((values[i] = visitors(values[i], row, tile.n + column + i)), ...);
            }
            store_in_order(values, c, tile, column);
        });
    }

    // Store the thread's row of accumulators, which are in registers.
    template <int kColumns, typename Tile>
    __device__ __forceinline__ void store_row(
        const float (&row)[kColumns], const CTile& c, const Tile& tile
    ) {
        static_assert(kColumns % kChunkColumns == 0, "a tile has whole chunks of columns");
#pragma unroll
        for (int column = 0; column < kColumns; column += kChunkColumns) {
            float values[kChunkColumns];
#pragma unroll
            for (int i = 0; i < kChunkColumns; ++i) values[i] = row[column + i];
            store_in_order(values, c, tile, column);
        }
    }

    // store() with a matrix `source` like the output (CUTLASS's C), which may be the output: TMA
    // loads its chunks into the staging buffers. The visitor is a function (value, source's value,
    // row, column) -> value.
    template <typename Ring, typename Tile, typename Visitor>
    __device__ __forceinline__ void store_with_source(
        AccumulatorConsumer<Ring>& accumulators,
        const CTile& c,
        const CTile& source,
        const Tile& tile,
        const Visitor& visitor
    ) {
        for_each_chunk(accumulators, [&](auto& values, int column) {
            const int row = tile.m + thread_in_warpgroup();
            load_chunk(source, tile, column);
            for_each_unit([&](int first, uint4& unit) {
                float loaded[kUnit];
                unpack(unit, loaded);
#pragma unroll
                for (int i = first; i < first + kUnit; ++i) {
                    values[i] = visitor(values[i], loaded[i - first], row, tile.n + column + i);
                }
            });
            store_chunk(values, c, tile, column);
        });
    }

    // Wait until TMA has read the staging buffers, before the CTA exits or reuses them.
    __device__ __forceinline__ void drain() const {
        if (leads()) wait_group_read<0>();
    }

private:
    static constexpr int kBytes = static_cast<int>(sizeof(Element));
    static constexpr int kUnit = 16 / kBytes;  // elements of 16 bytes

    __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }

    // Call work(values, column) for each chunk of the thread's row.
    template <typename Ring, typename Work>
    __device__ __forceinline__ static void for_each_chunk(
        AccumulatorConsumer<Ring>& accumulators, const Work& work
    ) {
        constexpr int kColumns = Ring::Tile::kColumnCount;
        static_assert(kColumns % kChunkColumns == 0, "a tile has whole chunks of columns");
        const auto tmem = accumulators.acquire();
#pragma unroll
        for (int column = 0; column < kColumns; column += kChunkColumns) {
            typename Ring::Tile::Element values[kChunkColumns];
            tmem.load(values, column);
            tmem_wait_loads();
            if (column + kChunkColumns == kColumns) accumulators.release();
            work(values, column);
        }
    }

    // Load a chunk into the current staging buffer, once TMA has read what it held.
    template <typename Tile>
    __device__ __forceinline__ void load_chunk(const CTile& source, const Tile& tile, int column) {
        auto& loaded = shared_.loaded[state_.index];
        if (leads()) {
            wait_group_read<kBuffers - 1>();
            loaded.expect_bytes(CTile::kBytes);
            issue_at<CTile, OutputMajor::kN>(tile, 0, column, [&](const auto&... at) {
                source.async_copy(shared_.chunks[state_.index], loaded, at...);
            });
        }
        loaded.wait(state_.phase);
    }

    // Store a chunk once TMA has read what the current staging buffer held.
    template <typename Register, typename Tile>
    __device__ __forceinline__ void store_in_order(
        const Register (&values)[kChunkColumns], const CTile& c, const Tile& tile, int column
    ) {
        if (leads()) wait_group_read<kBuffers - 1>();
        barrier_.sync();
        store_chunk(values, c, tile, column);
    }

    // Store a chunk through the current staging buffer, which is free.
    template <typename Register, typename Tile>
    __device__ __forceinline__ void store_chunk(
        const Register (&values)[kChunkColumns], const CTile& c, const Tile& tile, int column
    ) {
        static_assert(
            sizeof(Element) == 2 || kSameType<Element, Register>,
            "32-bit accumulators are stored as they are"
        );
        for_each_unit([&](int first, uint4& unit) { pack(values + first, unit); });
        fence_async_view_proxy();
        barrier_.sync();
        if (leads()) {
            issue_at<CTile, OutputMajor::kN>(tile, 0, column, [&](const auto&... at) {
                c.async_store(shared_.chunks[state_.index], at...);
            });
            commit_group();
        }
        state_.step();
    }

    // Call work(first, unit) for each 16 bytes of the thread's row in the current staging buffer.
    template <typename Work>
    __device__ __forceinline__ void for_each_unit(const Work& work) const {
        auto& chunk = shared_.chunks[state_.index];
#pragma unroll
        for (int first = 0; first < kChunkColumns; first += kUnit) {
            const int at = (thread_in_warpgroup() * kChunkColumns + first) * kBytes;
            work(first, *reinterpret_cast<uint4*>(chunk.bytes + swizzled<CTile::kSwizzle>(at)));
        }
    }

    template <typename Register>
    __device__ __forceinline__ static void pack(const Register* values, uint4& unit) {
        if constexpr (kBytes == 4) {
            memcpy(&unit, values, sizeof(unit));
        } else {
            unit = {
                pack_pair<Element>(values[0], values[1]), pack_pair<Element>(values[2], values[3]),
                pack_pair<Element>(values[4], values[5]), pack_pair<Element>(values[6], values[7])
            };
        }
    }

    __device__ __forceinline__ static void unpack(const uint4& unit, float (&values)[kUnit]) {
        if constexpr (kBytes == 4) {
            memcpy(values, &unit, sizeof(unit));
        } else {
            const u32 words[] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
            for (int i = 0; i < kUnit; i += 2) {
                const float2 pair = unpack_pair<Element>(words[i / 2]);
                values[i] = pair.x;
                values[i + 1] = pair.y;
            }
        }
    }

    Shared& shared_;
    NamedBarrier<128> barrier_;
    PipelineState<kBuffers> state_ = PipelineState<kBuffers>::for_consumer();
};

}  // namespace tmaasync
