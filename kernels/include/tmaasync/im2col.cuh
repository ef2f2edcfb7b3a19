#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/tensormap.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/tma_issue.cuh>

namespace tmaasync {

// A tile of the im2col matrix of a convolution (implicit GEMM), loaded straight from the images:
// the host's create_tma_tile_im2col writes the type and the numbers.
//
// Rows are output pixels, m = ((n * D + d) * H + h) * W + w with the output's extents. Columns are
// filter taps, then channels, k = ((t * R + r) * S + s) * channels + c, where `channels` is rounded
// up to whole chunks: channels that the images do not have are fill. So is everything beyond the
// last row or column. Shape and Box are (pixels, channels); in shared memory the tile is
// [chunks][pixels][chunk], as the tile of a K-major matrix.
//
// Coordinates are elements of that matrix, innermost first: {k, m}, k a multiple of the chunk.
// One thread issues.
template <
    typename T,
    int kMapRank,
    typename TileShape,
    typename BoxShape = TileShape,
    Swizzle kSwizzleMode = Swizzle::kNone>
struct TMATensorTileIm2col {
    using Element = T;
    using Matrix = TMATensorTile<T, TileShape, BoxShape, kSwizzleMode>;
    using Shared = typename Matrix::Shared;
    static constexpr Swizzle kSwizzle = kSwizzleMode;
    static constexpr bool kIsBulk = false;
    static constexpr int kRank = 2;
    static constexpr int kSpatial = kMapRank - 2;
    static constexpr int kPixels = BoxShape::side(0);
    static constexpr int kChannels = BoxShape::side(1);
    static constexpr int kBoxes = Matrix::kBoxes;
    static constexpr int kBoxBytes = Matrix::kBoxBytes;
    static constexpr int kBytes = Matrix::kBytes;
    static constexpr int kAlignment = Matrix::kAlignment;
    static_assert(kMapRank >= 3 && kMapRank <= 5, "images of 1 to 3 spatial dimensions");
    static_assert(TileShape::kRank == 2 && BoxShape::kRank == 2, "pixels, then channels");

    // Extent of the tile along side `dim`: pixels, then channels.
    __device__ static constexpr int side(int dim) { return TileShape::side(dim); }

    // Along the spatial dimensions, innermost first; unused ones are 1.
    struct Window {
        u32 outputs[3];
        u32 taps[3];
        u32 strides[3];
        u32 dilations[3];
        i32 lower_corner[3];
    };

    ptx::TensorMap map;
    Window window;
    u32 channels;

    __device__ __forceinline__ void prefetch_descriptor() const { ptx::prefetch_tensormap(&map); }

    __device__ static constexpr u32 bytes_at(Coordinates<2>) { return kBytes; }

    // The start of a box in the images: an iterator over the columns of one tile of rows, whose
    // step takes no division.
    struct Column {
        Coordinates<kMapRank> at;  // channel, the first tap's pixel, image
        u32 tap[kSpatial];         // innermost first

        __device__ __forceinline__ i32 channel() const { return at.values[0]; }
    };

    __device__ __forceinline__ Column column(Coordinates<2> at) const { return column_of(at, 0); }

    // Step to the next chunk of columns: of the same tap, or the first of the next tap. After the
    // last tap all is fill.
    __device__ __forceinline__ void step(Column& column) const {
        i32& channel = column.at.values[0];
        const i32 end = static_cast<i32>(channels);
        if (channel >= end) return;
        channel += kChannels;
        if (channel < end) return;
        channel = 0;
#pragma unroll
        for (int dim = 0; dim < kSpatial; ++dim) {
            if (++column.tap[dim] < window.taps[dim]) return;
            column.tap[dim] = 0;
        }
        channel = end;
    }

    // Load chunk `chunk` of a tile from a column of the matrix. The barrier must expect kBoxBytes,
    // or kBytes for all chunks of the tile. With kCtas = 2 (sm_100a, sm_103a) the barrier at this
    // offset in the even CTA of a pair counts the bytes of both.
    template <int kCtas = 1>
    __device__ __forceinline__ void async_copy_column(
        Shared& shared,
        SharedMemBarrier& barrier,
        const Column& column,
        int chunk = 0,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        static_assert(Matrix::boxes(0) == 1, "one box has all pixels of the tile");
        check_address("shared", box_address(shared, 0), kAlignment);
        check_index("chunk", chunk, kBoxes);
        load_box<kCtas>(shared, barrier, column, chunk, policy);
    }

    // Load the tile that starts at {k, m}. The barrier must expect kBytes.
    __device__ __forceinline__ void async_copy(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<2> at,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_address("shared", box_address(shared, 0), kAlignment);
        check_start(at);
        for (int box = 0; box < kBoxes; ++box) {
            load_box(shared, barrier, column_of(at, box), box, policy);
        }
    }

    // Load the tile at the same offset in every CTA in the mask. Each must expect kBytes.
    __device__ __forceinline__ void async_multicast_load(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<2> at,
        u16 cta_mask,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        async_multicast_load_partitioned<1>(shared, barrier, at, cta_mask, 0, policy);
    }

    // Load share `part` of kParts of the tile for every CTA in the mask: each of kParts CTAs loads
    // its share of the boxes and multicasts it to the cluster. Each CTA must still expect kBytes.
    // If kParts does not divide kBoxes, the last CTAs load fewer boxes, or none.
    template <int kParts>
    __device__ __forceinline__ void async_multicast_load_partitioned(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<2> at,
        u16 cta_mask,
        u32 part,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        constexpr int kShare = (kBoxes + kParts - 1) / kParts;
        check_address("shared", box_address(shared, 0), kAlignment);
        check_start(at);
        check_cta_mask(cta_mask);
        check_index("part", part, kParts);
        const int end = min(static_cast<int>(part + 1) * kShare, kBoxes);
        for (int box = part * kShare; box < end; ++box) {
            const Column column = column_of(at, box);
            tma::load_im2col_multicast<kMapRank>(
                box_address(shared, box), map, column.at, offsets(column).pixels, barrier.address(),
                cta_mask, policy
            );
        }
    }

    // Bring the tile into L2.
    __device__ __forceinline__ void prefetch(
        Coordinates<2> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_start(at);
        for (int box = 0; box < kBoxes; ++box) {
            const Column column = column_of(at, box);
            tma::prefetch_im2col<kMapRank>(map, column.at, offsets(column).pixels, policy);
        }
    }

private:
    // The distance of the tap from the first one in pixels, innermost first.
    struct Offsets {
        u16 pixels[kSpatial];
    };

    __device__ __forceinline__ Offsets offsets(const Column& column) const {
        Offsets offsets;
#pragma unroll
        for (int dim = 0; dim < kSpatial; ++dim) {
            offsets.pixels[dim] = static_cast<u16>(column.tap[dim] * window.dilations[dim]);
        }
        return offsets;
    }

    template <int kCtas = 1>
    __device__ __forceinline__ void load_box(
        Shared& shared, SharedMemBarrier& barrier, const Column& column, int box, CachePolicy policy
    ) const {
        u32 counted = barrier.address();
        if constexpr (kCtas == 2) counted = ptx::even_cta_of_pair(counted);
        tma::load_im2col<kMapRank, kCtas>(
            box_address(shared, box), map, column.at, offsets(column).pixels, counted, policy
        );
    }

    __device__ __forceinline__ static u32 box_address(Shared& shared, int box) {
        return ptx::shared_address(shared.bytes) + box * kBoxBytes;
    }

    __device__ __forceinline__ static void check_start(Coordinates<2> at) {
        check(at.values[0] >= 0, "at[0]", at.values[0], "it must be at least", 0);
        check(at.values[1] >= 0, "at[1]", at.values[1], "it must be at least", 0);
        check_multiple("at[0]", at.values[0], kChannels);
    }

    // Boxes lie pixels first, then chunks, as in a TMATensorTile.
    __device__ __forceinline__ Column column_of(Coordinates<2> at, int box) const {
        Column column;
        const int chunk = box / Matrix::boxes(0);
        set_tap(column, static_cast<u32>(at.values[0] + chunk * kChannels));
        set_pixel(column, static_cast<u32>(at.values[1] + box % Matrix::boxes(0) * kPixels));
        return column;
    }

    // Beyond the last tap the channel does not exist either, so that the box is fill.
    __device__ __forceinline__ void set_tap(Column& column, u32 k) const {
        u32 tap = k / channels;
        column.at.values[0] = static_cast<i32>(k - tap * channels);
#pragma unroll
        for (int dim = 0; dim < kSpatial; ++dim) {
            column.tap[dim] = tap % window.taps[dim];
            tap /= window.taps[dim];
        }
        if (tap > 0) column.at.values[0] = static_cast<i32>(channels);
    }

    __device__ __forceinline__ void set_pixel(Column& column, u32 m) const {
#pragma unroll
        for (int dim = 0; dim < kSpatial; ++dim) {
            const u32 step = m % window.outputs[dim] * window.strides[dim];
            column.at.values[1 + dim] = window.lower_corner[dim] + static_cast<i32>(step);
            m /= window.outputs[dim];
        }
        column.at.values[kMapRank - 1] = static_cast<i32>(m);
    }
};

// tilelang's c2d_im2col: load the tile in row `nhw_step` and column `c_step` of the tiles that
// cover the matrix, for any stride, dilation and padding. One thread; the barrier must expect
// kBytes.
template <typename Tile>
__device__ __forceinline__ void c2d_im2col(
    typename Tile::Shared& shared,
    SharedMemBarrier& barrier,
    const Tile& images,
    i32 nhw_step,
    i32 c_step,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    images.async_copy(shared, barrier, {c_step * Tile::side(1), nhw_step * Tile::side(0)}, policy);
}

}  // namespace tmaasync
