#pragma once

#include <tmaasync/bulk_group.cuh>
#include <tmaasync/fragment.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/structured/store_coordinates.cuh>
#include <tmaasync/tensor_memory/accumulator_ring.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/warp.cuh>

namespace tmaasync {

// The epilogue of a warpgroup whose accumulators lie in tensor memory: a thread loads its row,
// chunk by chunk, rounds it, and stages it in shared memory for TMA. CTile is a chunk: 128 rows by
// the columns of one box, 128, 64 or 32 bytes wide with the swizzle of that width. Chunks cycle
// through kBuffers staging buffers. It uses named barrier 1.
template <typename CTile, int kBuffers = 2>
class TmemEpilogue {
public:
    using Element = typename CTile::Element;
    static constexpr int kChunkColumns = CTile::side(CTile::kRank - 1);
    static_assert(CTile::side(CTile::kRank - 2) == 128, "a chunk has a row for each lane");
    static_assert(CTile::kBoxes == 1, "a chunk is one box");
    static_assert(sizeof(Element) == 2 || sizeof(Element) == 4, "outputs have 16 or 32 bits");

    // The staging buffers: a member of the CTA's shared memory.
    struct Shared {
        typename CTile::Shared chunks[kBuffers];
    };

    __device__ __forceinline__ explicit TmemEpilogue(Shared& shared) : shared_(shared) {}
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
        constexpr int kColumns = Ring::Tile::kColumnCount;
        static_assert(kColumns % kChunkColumns == 0, "a tile has whole chunks of columns");
        const auto source = accumulators.acquire();
#pragma unroll
        for (int column = 0; column < kColumns; column += kChunkColumns) {
            float values[kChunkColumns];
            source.load(values, column);
            tmem_wait_loads();
            if (column + kChunkColumns == kColumns) accumulators.release();
            const int row = thread_in_warpgroup();
#pragma unroll
            for (int i = 0; i < kChunkColumns; ++i) {
                ((values[i] = visitors(values[i], tile.m + row, tile.n + column + i)), ...);
            }
            store_chunk(values, c, tile, column);
        }
    }

    // Wait until TMA has read the staging buffers, before the CTA exits or reuses them.
    __device__ __forceinline__ void drain() const {
        if (leads()) wait_group_read<0>();
    }

private:
    __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }

    template <typename Tile>
    __device__ __forceinline__ void store_chunk(
        const float (&values)[kChunkColumns], const CTile& c, const Tile& tile, int column
    ) {
        auto& chunk = shared_.chunks[buffer_];
        buffer_ = (buffer_ + 1) % kBuffers;
        if (leads()) wait_group_read<kBuffers - 1>();
        barrier_.sync();
        write_row(chunk, values);
        fence_async_view_proxy();
        barrier_.sync();
        if (leads()) {
            issue_at<CTile, OutputMajor::kN>(tile, 0, column, [&](const auto&... at) {
                c.async_store(chunk, at...);
            });
            commit_group();
        }
    }

    // Write the thread's row, 16 bytes at a time.
    __device__ __forceinline__ static void write_row(
        typename CTile::Shared& chunk, const float (&values)[kChunkColumns]
    ) {
        constexpr int kUnit = 16 / static_cast<int>(sizeof(Element));
        const int start = thread_in_warpgroup() * kChunkColumns * static_cast<int>(sizeof(Element));
#pragma unroll
        for (int first = 0; first < kChunkColumns; first += kUnit) {
            uint4 unit;
            if constexpr (sizeof(Element) == 4) {
                unit = {
                    __float_as_uint(values[first]), __float_as_uint(values[first + 1]),
                    __float_as_uint(values[first + 2]), __float_as_uint(values[first + 3])
                };
            } else {
                unit = {
                    pack_pair<Element>(values[first], values[first + 1]),
                    pack_pair<Element>(values[first + 2], values[first + 3]),
                    pack_pair<Element>(values[first + 4], values[first + 5]),
                    pack_pair<Element>(values[first + 6], values[first + 7])
                };
            }
            const int at = start + first * static_cast<int>(sizeof(Element));
            *reinterpret_cast<uint4*>(chunk.bytes + swizzled<CTile::kSwizzle>(at)) = unit;
        }
    }

    Shared& shared_;
    NamedBarrier<128> barrier_{1};
    int buffer_ = 0;
};

}  // namespace tmaasync
