#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/tma_issue.cuh>

namespace tmaasync {

// A tile of a one-dimensional array without a tensor map; the length is any multiple of 16 bytes.
// The last tile is shorter, so the expected bytes depend on the start of the tile.
template <typename T, int kTileElements>
struct BulkTile {
    using Element = T;
    static constexpr bool kIsBulk = true;
    static constexpr int kRank = 1;
    static constexpr int kElements = kTileElements;
    static constexpr int kBytes = kTileElements * static_cast<int>(sizeof(T));
    static_assert(kBytes % 16 == 0, "bulk copies move multiples of 16 bytes");

    struct alignas(128) Shared {
        static constexpr int kBytes = BulkTile::kBytes;
        unsigned char bytes[kBytes];
    };

    T* global;
    i64 elements;

    // Does nothing; it exists so that one kernel can take both kinds of tile.
    __device__ __forceinline__ void prefetch_descriptor() const {}

    // Bytes of the tile that starts at this element.
    __device__ __forceinline__ u32 bytes_at(i64 element) const {
        const i64 left = (elements - element) * static_cast<i64>(sizeof(T));
        return static_cast<u32>(left < kBytes ? left : kBytes);
    }

    // Load the tile that starts at this element. The barrier must expect bytes_at(element).
    __device__ __forceinline__ void async_copy(
        Shared& shared,
        SharedMemBarrier& barrier,
        i64 element,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_copy(shared, element);
        tma::load_bulk(
            ptx::shared_address(shared.bytes), global + element, bytes_at(element),
            barrier.address(), policy
        );
    }

    // Store the tile. Follow with commit_group().
    __device__ __forceinline__ void async_store(
        const Shared& shared, i64 element, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_copy(shared, element);
        tma::store_bulk(
            global + element, ptx::shared_address(shared.bytes), bytes_at(element), policy
        );
    }

private:
    __device__ __forceinline__ void check_copy(const Shared& shared, i64 element) const {
        check_address("shared", ptx::shared_address(shared.bytes), kGranuleBytes);
        check_index("element", element, elements);
        check_address("global + element", reinterpret_cast<u64>(global + element), kGranuleBytes);
        check_multiple("bytes_at(element)", bytes_at(element), kGranuleBytes);
    }
};

}  // namespace tmaasync
