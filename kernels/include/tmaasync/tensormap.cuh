#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/sync.cuh>
#include <tmaasync/ptx/tensormap.cuh>
#include <tmaasync/ptx/tensormap_edit.cuh>
#include <tmaasync/swizzle.cuh>

namespace tmaasync {

using ptx::ElementType;
using ptx::TensorMap;

enum class Interleave : int { kNone, k16B, k32B };
enum class OobFill : int { kZero, kNan };

// The fields of a map of kRank dimensions, to be replaced by one thread; sm_90a. `Where` is a
// TensorMap* for a map in global memory, a shared address for one in shared memory. Dimensions are
// counted outermost first, like the sides of a tile. A dimension that the map does not have traps.
template <typename Where, int kRank>
struct TensorMapFields {
    static constexpr i64 kMaxRank = 5;
    static constexpr i64 kMaxBoxSide = 256;
    static constexpr i64 kMaxElementStride = 8;
    static constexpr i64 kStrideLimit = i64{1} << 40;

    Where map;

    // A multiple of 16 bytes.
    __device__ __forceinline__ void replace_global_address(const void* address) const {
        check_address("address", reinterpret_cast<u64>(address), kGranuleBytes);
        ptx::tensormap_replace_global_address(map, address);
    }

    // Elements along a dimension.
    __device__ __forceinline__ void replace_global_dim(int dim, u32 extent) const {
        check_index("dim", dim, kRank);
        check(extent >= 1, "extent", extent, "it must be at least", 1);
        at_ordinal(kRank - 1 - dim, [&](auto at) {
            ptx::tensormap_replace_global_dim<decltype(at)::kValue>(map, extent);
        });
    }

    // Bytes from one index of a dimension to the next, a multiple of 16; not of the innermost.
    __device__ __forceinline__ void replace_global_stride(int dim, u64 stride_bytes) const {
        check_index("dim", dim, kRank - 1);
        check_index("stride_bytes", stride_bytes, kStrideLimit);
        check_multiple("stride_bytes", stride_bytes, kGranuleBytes);
        at_ordinal<0, kRank - 1>(kRank - 2 - dim, [&](auto at) {
            ptx::tensormap_replace_global_stride<decltype(at)::kValue>(map, stride_bytes);
        });
    }

    // Both, of all dimensions.
    __device__ __forceinline__ void replace_global_dim_strides(
        const u32 (&shape)[kRank], const u64 (&strides_bytes)[kRank > 1 ? kRank - 1 : 1]
    ) const {
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) {
            replace_global_dim(dim, shape[dim]);
            if (dim < kRank - 1) replace_global_stride(dim, strides_bytes[dim]);
        }
    }

    // The rest changes what one instruction moves, and so what the type of a tile promises.
    __device__ __forceinline__ void replace_rank(u32 rank) const {
        check_range("rank", rank, 1, kMaxRank);
        ptx::tensormap_replace_rank(map, rank - 1);
    }

    __device__ __forceinline__ void replace_box_side(int dim, u32 side) const {
        check_index("dim", dim, kRank);
        check_range("side", side, 1, kMaxBoxSide);
        at_ordinal(kRank - 1 - dim, [&](auto at) {
            ptx::tensormap_replace_box_dim<decltype(at)::kValue>(map, side);
        });
    }

    __device__ __forceinline__ void replace_element_stride(int dim, u32 stride) const {
        check_index("dim", dim, kRank);
        check_range("stride", stride, 1, kMaxElementStride);
        at_ordinal(kRank - 1 - dim, [&](auto at) {
            ptx::tensormap_replace_element_stride<decltype(at)::kValue>(map, stride);
        });
    }

    template <ElementType kType>
    __device__ __forceinline__ void replace_element_type() const {
        ptx::tensormap_replace_elemtype<static_cast<int>(kType)>(map);
    }

    template <Interleave kInterleave>
    __device__ __forceinline__ void replace_interleave() const {
        ptx::tensormap_replace_interleave_layout<static_cast<int>(kInterleave)>(map);
    }

    template <Swizzle kSwizzle>
    __device__ __forceinline__ void replace_swizzle() const {
        ptx::tensormap_replace_swizzle_mode<static_cast<int>(kSwizzle)>(map);
    }

    template <OobFill kFill>
    __device__ __forceinline__ void replace_oob_fill() const {
        ptx::tensormap_replace_fill_mode<static_cast<int>(kFill)>(map);
    }

private:
    template <int kOrdinal>
    struct Ordinal {
        static constexpr int kValue = kOrdinal;
    };

    // The instruction takes the ordinal as an immediate; a constant one leaves a single branch.
    template <int kOrdinal = 0, int kCount = kRank, typename Replace>
    __device__ __forceinline__ static void at_ordinal(int ordinal, Replace replace) {
        if constexpr (kOrdinal == kCount) {
            __trap();
        } else if (ordinal == kOrdinal) {
            replace(Ordinal<kOrdinal>{});
        } else {
            at_ordinal<kOrdinal + 1, kCount>(ordinal, replace);
        }
    }
};

// A tensor map, and its edits on the device. A map that is edited lies in global memory, one per
// editor: in a TMATensorTileArray. No copy that uses the old map may be in flight.
//
// edit_in_shared_mem and edit_in_gmem take every step in order; the single steps come after them.
template <int kRank>
struct EditableTensorMap {
    using SharedFields = TensorMapFields<u32, kRank>;
    using GlobalFields = TensorMapFields<TensorMap*, kRank>;

    TensorMap map;

    __device__ __forceinline__ void prefetch_descriptor() const { ptx::prefetch_tensormap(&map); }

    // Edit a copy of this map in shared memory, publish it, and make it usable by this warp. A
    // whole converged warp; `edit(SharedFields)` runs in one lane. Other warps and CTAs use the map
    // after tensormap_fence_acquire(), once they know that it is there.
    template <typename Edit>
    __device__ __forceinline__ void edit_in_shared_mem(TensorMap& scratch, Edit edit) {
        if (ptx::elect_sync()) {
            smem_tensormap_init(scratch);
            edit(shared_fields(scratch));
        }
        __syncwarp();
        tensormap_cp_fence_release(scratch);
        tensormap_fence_acquire();
    }

    // Replace fields of this map in place, publish it, and make it usable by this thread.
    // One thread; `edit(GlobalFields)`.
    template <typename Edit>
    __device__ __forceinline__ void edit_in_gmem(Edit edit) {
        edit(GlobalFields{&map});
        tensormap_fence_release();
        tensormap_fence_acquire();
    }

    // --- the steps ---

    // Copy this map to shared memory, by ordinary accesses of one thread.
    __device__ __forceinline__ void smem_tensormap_init(TensorMap& scratch) const {
#pragma unroll
        for (int word = 0; word < 16; ++word) {
            scratch.words[word] = map.words[word];
        }
    }

    __device__ __forceinline__ void replace_tensormap_global_address_in_gmem(const void* address) {
        GlobalFields{&map}.replace_global_address(address);
    }

    __device__ __forceinline__ static void replace_tensormap_global_address_in_shared_mem(
        TensorMap& scratch, const void* address
    ) {
        shared_fields(scratch).replace_global_address(address);
    }

    // Extents and byte strides, outermost first; the innermost has no stride.
    __device__ __forceinline__ void replace_tensormap_global_dim_strides_in_gmem(
        const u32 (&shape)[kRank], const u64 (&strides_bytes)[kRank > 1 ? kRank - 1 : 1]
    ) {
        GlobalFields{&map}.replace_global_dim_strides(shape, strides_bytes);
    }

    __device__ __forceinline__ static void replace_tensormap_global_dim_strides_in_shared_mem(
        TensorMap& scratch,
        const u32 (&shape)[kRank],
        const u64 (&strides_bytes)[kRank > 1 ? kRank - 1 : 1]
    ) {
        shared_fields(scratch).replace_global_dim_strides(shape, strides_bytes);
    }

    // After edits in global memory, by the thread that made them.
    __device__ __forceinline__ static void tensormap_fence_release() {
        ptx::fence_proxy_tensormap_release_gpu();
    }

    // After edits in shared memory: copies the map here and releases it. A whole converged warp.
    __device__ __forceinline__ void tensormap_cp_fence_release(const TensorMap& scratch) {
        ptx::tensormap_cp_fenceproxy(&map, ptx::shared_address(&scratch));
    }

    // Before this thread's first copy with a map that was edited since, by anyone on this GPU.
    __device__ __forceinline__ void tensormap_fence_acquire() const {
        ptx::fence_proxy_tensormap_acquire_gpu(&map);
    }

private:
    __device__ __forceinline__ static SharedFields shared_fields(TensorMap& scratch) {
        const u32 address = ptx::shared_address(&scratch);
        check_address("scratch", address, alignof(TensorMap));
        return {address};
    }
};

}  // namespace tmaasync
