#pragma once

#include <tmaasync/cluster.cuh>
#include <tmaasync/copy/strided.cuh>
#include <tmaasync/copy/units.cuh>
#include <tmaasync/cp_async.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/tma.cuh>
#include <tmaasync/warp.cuh>

// The types that the host's plan_copy gives to kernels (plan.cuda_type), one per way to move a
// tile. All lay it out alike in shared memory. As a kernel parameter:
// `const __grid_constant__ Source source`.
namespace tmaasync {

__device__ __forceinline__ u32 threads_in_block() {
    return blockDim.x * blockDim.y * blockDim.z;
}

// The facts about the tile that all of these types have.
template <typename TileType>
struct CopiedTile {
    using Tile = TileType;
    using Element = typename Tile::Element;
    using Shared = typename Tile::Shared;
    static constexpr int kRank = Tile::kRank;
    static constexpr int kBytes = Tile::kBytes;
    static constexpr bool kIsTma = false;
    static constexpr bool kIsMulticast = false;
    static constexpr bool kIsCpAsync = false;

    __device__ static constexpr int side(int dim) { return Tile::side(dim); }

    __device__ __forceinline__ static u32 tile_offset(Coordinates<kRank> position) {
        return Tile::tile_offset(position);
    }

    // Nothing to prefetch; every choice has it, so that one kernel serves all.
    __device__ __forceinline__ void prefetch_descriptor() const {}
};

// --- by TMA: one thread issues -------------------------------------------------------------------

// By tensor map.
template <typename TileType, CachePolicy kPolicy = CachePolicy::kEvictNormal>
struct TensorCopy : CopiedTile<TileType> {
    using typename CopiedTile<TileType>::Shared;
    using CopiedTile<TileType>::kRank;
    static constexpr bool kIsTma = true;

    TileType tile;

    __device__ __forceinline__ void prefetch_descriptor() const { tile.prefetch_descriptor(); }

    __device__ __forceinline__ void load(
        Shared& shared, SharedMemBarrier& barrier, Coordinates<kRank> at
    ) const {
        tile.async_copy(shared, barrier, at, kPolicy);
    }

    __device__ __forceinline__ void store(const Shared& shared, Coordinates<kRank> at) const {
        tile.async_store(shared, at, kPolicy);
    }
};

// By tensor map with multicast: the lowest CTA of the mask loads for all CTAs in it. CTAs outside
// of it load for themselves.
template <typename TileType, CachePolicy kPolicy, u32 kClusterMask>
struct MulticastCopy : CopiedTile<TileType> {
    using typename CopiedTile<TileType>::Shared;
    using CopiedTile<TileType>::kRank;
    static constexpr bool kIsTma = true;
    static constexpr bool kIsMulticast = true;
    static constexpr u32 kIssuer = kClusterMask & -kClusterMask;

    TileType tile;

    __device__ __forceinline__ void prefetch_descriptor() const { tile.prefetch_descriptor(); }

    __device__ __forceinline__ void load(
        Shared& shared, SharedMemBarrier& barrier, Coordinates<kRank> at
    ) const {
        const u32 me = 1u << block_rank_in_cluster();
        if (me == kIssuer) tile.async_multicast_load(shared, barrier, at, kClusterMask, kPolicy);
        if ((me & kClusterMask) == 0) tile.async_copy(shared, barrier, at, kPolicy);
    }
};

// In one piece of contiguous memory, which the host proved to be inside of the array.
template <typename TileType, CachePolicy kPolicy = CachePolicy::kEvictNormal>
struct BulkCopy : CopiedTile<TileType> {
    using typename CopiedTile<TileType>::Shared;
    using CopiedTile<TileType>::kRank;
    using CopiedTile<TileType>::kBytes;
    static constexpr bool kIsTma = true;
    static_assert(kBytes % 16 == 0, "bulk copies move multiples of 16 bytes");

    StridedTensor<typename TileType::Element, kRank> array;

    __device__ __forceinline__ void load(
        Shared& shared, SharedMemBarrier& barrier, Coordinates<kRank> at
    ) const {
        check_inside(at);
        const void* global = array.bytes() + array.offset_bytes(at);
        tma_load_1d(global, barrier, shared.bytes, kBytes, kPolicy);
    }

    __device__ __forceinline__ void store(const Shared& shared, Coordinates<kRank> at) const {
        check_inside(at);
        tma_store_1d(array.bytes() + array.offset_bytes(at), shared.bytes, kBytes, kPolicy);
    }

private:
    __device__ __forceinline__ void check_inside(Coordinates<kRank> at) const {
        for (int dim = 0; dim < kRank; ++dim) {
            const int side = TileType::side(kRank - 1 - dim);
            check_range("at", at.values[dim], 0, array.extents[dim] - side);
        }
    }
};

// --- by threads: all of the block ----------------------------------------------------------------

// By cp.async, in accesses of kAccessBytes: several elements, one, or a part of one.
template <typename TileType, int kAccessBytes>
struct CpAsyncCopy : CopiedTile<TileType> {
    using typename CopiedTile<TileType>::Shared;
    using typename CopiedTile<TileType>::Element;
    using CopiedTile<TileType>::kRank;
    static constexpr bool kIsCpAsync = true;
    static constexpr int kItemBytes = sizeof(Element);
    static constexpr int kCount = kAccessBytes > kItemBytes ? kAccessBytes / kItemBytes : 1;
    using Units = TileUnits<TileType, kCount, Element>;

    StridedTensor<Element, kRank> array;

    __device__ __forceinline__ void load(Shared& shared, Coordinates<kRank> at) const {
        // cp.async needs an aligned address even where nothing is read.
        const unsigned char* nothing =
            array.bytes() - reinterpret_cast<u64>(array.bytes()) % kAccessBytes;
        for (u32 unit = thread_index<3>(); unit < Units::kUnits; unit += threads_in_block()) {
            const TileUnit to = Units::at(array, at, unit);
            const unsigned char* from = to.inside > 0 ? array.bytes() + to.global_bytes : nothing;
            const int inside_bytes = to.inside * kItemBytes;
#pragma unroll
            for (int part = 0; part < kCount * kItemBytes; part += kAccessBytes) {
                const int left = inside_bytes - part;
                cp_async_gs_partial<kAccessBytes>(
                    shared.bytes + to.shared_bytes + part, from + part,
                    left <= 0 ? 0 : min(left, kAccessBytes)
                );
            }
        }
    }
};

// By ordinary loads and stores of kAccessBytes of global memory: several elements, one, or a part
// of one. Global memory may hold another type than the tile.
template <typename TileType, int kAccessBytes, typename GlobalType = typename TileType::Element>
struct LoopCopy : CopiedTile<TileType> {
    using typename CopiedTile<TileType>::Shared;
    using typename CopiedTile<TileType>::Element;
    using CopiedTile<TileType>::kRank;
    using Global = GlobalType;
    static constexpr int kItemBytes = sizeof(Global);
    static constexpr int kCount = kAccessBytes > kItemBytes ? kAccessBytes / kItemBytes : 1;
    using Units = TileUnits<TileType, kCount, Global>;
    using Mover = UnitMover<Element, Global, kCount, kAccessBytes>;
    using ItemMover = UnitMover<Element, Global, 1, kAccessBytes>;
    // Units that a thread reads before it writes any.
    static constexpr int kBatch = 4;

    StridedTensor<Global, kRank> array;

    __device__ __forceinline__ void load(Shared& shared, Coordinates<kRank> at) const {
        for (u32 first = thread_index<3>(); first < Units::kUnits;
             first += kBatch * threads_in_block()) {
            TileUnit units[kBatch];
            typename Mover::Value values[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                units[i] = Units::at(array, at, first + i * threads_in_block());
                if (units[i].inside == kCount)
                    values[i] = Mover::read(array.bytes() + units[i].global_bytes);
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) put(shared, units[i], values[i]);
        }
    }

    __device__ __forceinline__ void store(const Shared& shared, Coordinates<kRank> at) const {
        for (u32 unit = thread_index<3>(); unit < Units::kUnits; unit += threads_in_block()) {
            const TileUnit to = Units::at(array, at, unit);
            const unsigned char* from = shared.bytes + to.shared_bytes;
            unsigned char* global = array.bytes() + to.global_bytes;
            if (to.inside == kCount) {
                Mover::write(global, Mover::get(from));
                continue;
            }
#pragma unroll 1
            for (int i = 0; i < to.inside; ++i) {
                const auto item = ItemMover::get(from + i * sizeof(Element));
                ItemMover::write(global + i * kItemBytes, item);
            }
        }
    }

private:
    // A unit at the edge of the array is read here, element by element.
    __device__ __forceinline__ void put(
        Shared& shared, const TileUnit& unit, typename Mover::Value value
    ) const {
        unsigned char* to = shared.bytes + unit.shared_bytes;
        const unsigned char* from = array.bytes() + unit.global_bytes;
        if (unit.inside == kCount) {
            Mover::put(to, value);
        } else if (unit.inside >= 0) {
#pragma unroll 1
            for (int i = 0; i < kCount; ++i) {
                typename ItemMover::Value item{};
                if (i < unit.inside) item = ItemMover::read(from + i * kItemBytes);
                ItemMover::put(to + i * sizeof(Element), item);
            }
        }
    }
};

}  // namespace tmaasync
