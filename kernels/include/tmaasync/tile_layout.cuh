#pragma once

#include <tmaasync/element_bits.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/swizzle.cuh>

namespace tmaasync {

using ptx::Coordinates;

// The sides of a tile or a box, outermost first as on the host.
template <int... kSides>
struct Shape {
    static constexpr int kRank = sizeof...(kSides);
    static constexpr int kElements = (kSides * ...);

    __device__ static constexpr int side(int dim) {
        const int sides[kRank] = {kSides...};
        return sides[dim];
    }
};

// The box that one TMA instruction moves.
template <int... kSides>
using Box = Shape<kSides...>;

// The element strides of a tile, by default 1 along every side.
template <typename ElementStrides>
struct StrideOf {
    __device__ static constexpr int at(int dim) { return ElementStrides::side(dim); }
};
template <>
struct StrideOf<void> {
    __device__ static constexpr int at(int) { return 1; }
};

// The boxes of a tile, and where they lie in the array and in shared memory. A tile is
// ceil(tile / box) boxes along each side. In shared memory the boxes lie back to back, and the
// innermost side of the box grid varies slowest. Each box is dense and then swizzled. If only the
// last side is split, the layout is [chunks][other sides][chunk].
template <
    typename T,
    typename TileShape,
    typename BoxShape,
    Swizzle kSwizzleMode,
    typename ElementStrides>
struct TileLayout {
    using Element = T;
    static constexpr Swizzle kSwizzle = kSwizzleMode;
    static constexpr int kRank = TileShape::kRank;
    static_assert(kRank == BoxShape::kRank, "tile and box have one side per dimension");

    // Number of boxes along side `dim`, outermost first.
    __device__ static constexpr int boxes(int dim) {
        return (TileShape::side(dim) + BoxShape::side(dim) - 1) / BoxShape::side(dim);
    }

    __device__ static constexpr int count_boxes() {
        int count = 1;
        for (int dim = 0; dim < kRank; ++dim) {
            count *= boxes(dim);
        }
        return count;
    }

    static constexpr int kBoxes = count_boxes();
    static constexpr int kElements = TileShape::kElements;
    static constexpr int kBoxElements = BoxShape::kElements;
    // Bytes that one box and one tile credit to a barrier, including out-of-bounds elements.
    static constexpr int kBoxBytes = kBoxElements * ElementBits<T>::kLoaded / 8;
    static constexpr int kBytes = kBoxes * kBoxBytes;
    // Bytes from one box to the next in shared memory, with the gaps of elements below a byte.
    static constexpr int kBoxStep = kBoxElements * ElementBits<T>::kShared / 8;
    static constexpr int kAlignment = alignment_bytes(kSwizzle);
    static_assert(kBoxes == 1 || kBoxStep % 128 == 0, "each box starts at a multiple of 128 bytes");

    // Extent of the tile along side `dim`, outermost first.
    __device__ static constexpr int side(int dim) { return TileShape::side(dim); }
    __device__ static constexpr int box_side(int dim) { return BoxShape::side(dim); }

    // The distance between boxes, and between tiles, in the array along side `dim`.
    __device__ static constexpr int box_step(int dim) {
        return BoxShape::side(dim) * StrideOf<ElementStrides>::at(dim);
    }
    __device__ static constexpr int tile_step(int dim) {
        return TileShape::side(dim) * StrideOf<ElementStrides>::at(dim);
    }

    // The tile's buffer in shared memory: declare one per stage.
    struct alignas(kAlignment) Shared {
        static constexpr int kBytes = TileLayout::kBytes;  // bytes of a load, without padding
        unsigned char bytes[kBoxes * kBoxStep];

        __device__ __forceinline__ T* data() { return reinterpret_cast<T*>(bytes); }
        __device__ __forceinline__ const T* data() const {
            return reinterpret_cast<const T*>(bytes);
        }
    };

    // The byte offset of an element in shared memory from the start of the tile, which is aligned;
    // the host's tile_offset. The position in the tile is innermost first.
    __device__ __forceinline__ static u32 tile_offset(Coordinates<kRank> position) {
        u32 box = static_cast<u32>(position.values[0]) / box_side(kRank - 1);
        u32 within = 0;
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) {
            const u32 index = position.values[kRank - 1 - dim];
            const u32 part = box_side(dim);
            if (dim < kRank - 1) box = box * boxes(dim) + index / part;
            within = within * part + index % part;
        }
        const u32 element = box * kBoxElements + within;
        constexpr u32 kBits = ElementBits<T>::kShared;
        return swizzled<kSwizzle>(kBits < 8 ? element * kBits / 8 : element * (kBits / 8));
    }

    // The shared address of box `box` of the tile.
    __device__ __forceinline__ static u32 box_address(const Shared& shared, int box) {
        return ptx::shared_address(shared.bytes) + box * kBoxStep;
    }

    // The coordinates of box `box` in the array. In the box order the last side varies slowest, and
    // the other sides are in row-major order.
    __device__ __forceinline__ static Coordinates<kRank> box_start(Coordinates<kRank> at, int box) {
#pragma unroll
        for (int dim = kRank - 2; dim >= 0; --dim) {
            at.values[kRank - 1 - dim] += box % boxes(dim) * box_step(dim);
            box /= boxes(dim);
        }
        at.values[0] += box * box_step(kRank - 1);
        return at;
    }
};

}  // namespace tmaasync
