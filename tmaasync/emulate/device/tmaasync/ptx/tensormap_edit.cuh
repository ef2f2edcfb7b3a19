#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

// A map is a pointer to one in global memory, or the shared address of one.
__device__ __forceinline__ void* edited_map(TensorMap* map) {
    return map;
}
__device__ __forceinline__ void* edited_map(u32 shared_map) {
    return tmaasync_emulate::map_in_shared(shared_map);
}

template <typename Map>
__device__ __forceinline__ void replace_in(
    Map map, tmaasync_emulate::MapField field, int ordinal, u64 value
) {
    tmaasync_emulate::replace_in_map(edited_map(map), field, ordinal, value);
}

template <typename Map>
__device__ __forceinline__ void tensormap_replace_global_address(Map map, const void* address) {
    replace_in(map, tmaasync_emulate::MapField::kGlobalAddress, 0, reinterpret_cast<u64>(address));
}

template <typename Map>
__device__ __forceinline__ void tensormap_replace_rank(Map map, u32 rank_less_one) {
    replace_in(map, tmaasync_emulate::MapField::kRank, 0, rank_less_one);
}

template <int kOrdinal, typename Map>
__device__ __forceinline__ void tensormap_replace_global_dim(Map map, u32 extent) {
    static_assert(kOrdinal >= 0 && kOrdinal < 5, "an ordinal of the map");
    replace_in(map, tmaasync_emulate::MapField::kGlobalDim, kOrdinal, extent);
}

template <int kOrdinal, typename Map>
__device__ __forceinline__ void tensormap_replace_global_stride(Map map, u64 stride_bytes) {
    static_assert(kOrdinal >= 0 && kOrdinal < 4, "an ordinal of the map");
    replace_in(map, tmaasync_emulate::MapField::kGlobalStride, kOrdinal, stride_bytes);
}

template <int kOrdinal, typename Map>
__device__ __forceinline__ void tensormap_replace_box_dim(Map map, u32 side) {
    static_assert(kOrdinal >= 0 && kOrdinal < 5, "an ordinal of the map");
    replace_in(map, tmaasync_emulate::MapField::kBoxDim, kOrdinal, side);
}

template <int kOrdinal, typename Map>
__device__ __forceinline__ void tensormap_replace_element_stride(Map map, u32 stride) {
    static_assert(kOrdinal >= 0 && kOrdinal < 5, "an ordinal of the map");
    replace_in(map, tmaasync_emulate::MapField::kElementStride, kOrdinal, stride);
}

template <int kType, typename Map>
__device__ __forceinline__ void tensormap_replace_elemtype(Map map) {
    replace_in(map, tmaasync_emulate::MapField::kElementType, 0, kType);
}

template <int kLayout, typename Map>
__device__ __forceinline__ void tensormap_replace_interleave_layout(Map map) {
    replace_in(map, tmaasync_emulate::MapField::kInterleave, 0, kLayout);
}

template <int kMode, typename Map>
__device__ __forceinline__ void tensormap_replace_swizzle_mode(Map map) {
    replace_in(map, tmaasync_emulate::MapField::kSwizzle, 0, kMode);
}

template <int kFill, typename Map>
__device__ __forceinline__ void tensormap_replace_fill_mode(Map map) {
    replace_in(map, tmaasync_emulate::MapField::kFill, 0, kFill);
}

__device__ __forceinline__ void fence_proxy_tensormap_release_gpu() {
    tmaasync_emulate::fence_maps_release();
}

__device__ __forceinline__ void tensormap_cp_fenceproxy(TensorMap* map, u32 shared_map) {
    tmaasync_emulate::copy_map_and_release(map, shared_map);
}

}  // namespace tmaasync::ptx
