#pragma once

#include <tmaasync/cluster.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>

namespace tmaasync {

// Columns of tensor memory (sm_100a, sm_103a) that hold a matrix of 128 rows, one in each lane, and
// words of T, a type of 32 bits. A warp reaches rows 32 * (warp % 4) to 31 above.
template <typename T, int kColumns>
struct TmemTile {
    static_assert(sizeof(T) == 4, "tensor memory has words of 32 bits");
    static_assert(kColumns > 0 && kColumns <= 512, "tensor memory has 512 columns");

    using Element = T;
    static constexpr int kColumnCount = kColumns;

    u32 address;  // of row 0 and column 0, as tcgen05.mma takes it

    // Load kCount columns of the calling thread's row, a power of two to 128. The whole warp calls
    // it. The values are there after tmem_wait_loads().
    template <int kCount>
    __device__ __forceinline__ void load(T (&values)[kCount], int column = 0) const {
        static_assert(kCount <= kColumns, "no more columns than the tile has");
        u32(&words)[kCount] = reinterpret_cast<u32(&)[kCount]>(values);
        ptx::tcgen05_ld<ptx::Tcgen05Shape::k32x32b>(words, row_of_warp() + column);
    }

    // Store kCount columns of the calling thread's row. The whole warp calls it. They are there
    // after tmem_wait_stores().
    template <int kCount>
    __device__ __forceinline__ void store(const T (&values)[kCount], int column = 0) const {
        static_assert(kCount <= kColumns, "no more columns than the tile has");
        const u32(&words)[kCount] = reinterpret_cast<const u32(&)[kCount]>(values);
        ptx::tcgen05_st<ptx::Tcgen05Shape::k32x32b>(row_of_warp() + column, words);
    }

private:
    __device__ __forceinline__ u32 row_of_warp() const {
        return address + (threadIdx.x / 32 % 4 * 32 << 16);
    }
};

// Wait until the warp's loads have read tensor memory, or its stores have written it.
__device__ __forceinline__ void tmem_wait_loads() {
    ptx::tcgen05_wait_ld();
}
__device__ __forceinline__ void tmem_wait_stores() {
    ptx::tcgen05_wait_st();
}

// The least allocation with this many columns: a power of two from 32 on.
__device__ constexpr int tmem_columns(int columns) {
    int allocated = 32;
    while (allocated < columns) allocated *= 2;
    return allocated;
}

// An allocation of kColumns columns of tensor memory, a power of two from 32 to 512, that ends with
// its scope. All threads of the CTA construct and destroy it together; with kCtas = 2 all threads
// of both CTAs of the pair, which share a cluster of two. Its first warp allocates.
template <int kColumns, int kCtas = 1>
class TmemAllocation {
    static_assert(
        kColumns >= 32 && kColumns <= 512 && (kColumns & (kColumns - 1)) == 0,
        "an allocation has 32, 64, 128, 256 or 512 columns"
    );

public:
    // The address is handed on through `shared`, a variable in shared memory.
    __device__ __forceinline__ explicit TmemAllocation(u32& shared) {
        if constexpr (kCtas == 2) synchronise();
        if (threadIdx.x < 32) {
            ptx::tcgen05_alloc<kCtas>(ptx::shared_address(&shared), kColumns);
            ptx::tcgen05_relinquish_alloc_permit<kCtas>();
        }
        __syncthreads();
        address_ = shared;
    }
    // Operations of tcgen05 must be complete: await the commits of all mma.
    __device__ __forceinline__ ~TmemAllocation() {
        ptx::tcgen05_fence_before_thread_sync();
        synchronise();
        if (threadIdx.x < 32) ptx::tcgen05_dealloc<kCtas>(address_, kColumns);
        if constexpr (kCtas == 2) synchronise();
    }
    TmemAllocation(const TmemAllocation&) = delete;
    TmemAllocation& operator=(const TmemAllocation&) = delete;

    // A tile of kTileColumns columns from kFirst on.
    template <typename T, int kTileColumns, int kFirst = 0>
    __device__ __forceinline__ TmemTile<T, kTileColumns> tile() const {
        static_assert(kFirst + kTileColumns <= kColumns, "the tile ends within the allocation");
        return {address_ + kFirst};
    }

private:
    __device__ __forceinline__ static void synchronise() {
        if constexpr (kCtas == 2) {
            cluster_sync();
        } else {
            __syncthreads();
        }
    }

    u32 address_;
};

}  // namespace tmaasync
