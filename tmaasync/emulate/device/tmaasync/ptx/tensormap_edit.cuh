#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ TensorMap* map_in_shared(u32 shared_map) {
    return static_cast<TensorMap*>(tmaasync_emulate::map_in_shared(shared_map));
}

__device__ __forceinline__ void tensormap_replace_global_address(
    TensorMap* map, const void* address
) {
    tmaasync_emulate::replace_in_map(
        map, tmaasync_emulate::MapField::kGlobalAddress, 0, reinterpret_cast<u64>(address)
    );
}

__device__ __forceinline__ void tensormap_replace_global_address(
    u32 shared_map, const void* address
) {
    tensormap_replace_global_address(map_in_shared(shared_map), address);
}

__device__ __forceinline__ void tensormap_replace_rank(TensorMap* map, u32 rank_less_one) {
    tmaasync_emulate::replace_in_map(map, tmaasync_emulate::MapField::kRank, 0, rank_less_one);
}

__device__ __forceinline__ void tensormap_replace_rank(u32 shared_map, u32 rank_less_one) {
    tensormap_replace_rank(map_in_shared(shared_map), rank_less_one);
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_global_dim(TensorMap* map, u32 extent) {
    static_assert(kOrdinal >= 0 && kOrdinal < 5, "an ordinal of the map");
    tmaasync_emulate::replace_in_map(map, tmaasync_emulate::MapField::kGlobalDim, kOrdinal, extent);
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_global_dim(u32 shared_map, u32 extent) {
    tensormap_replace_global_dim<kOrdinal>(map_in_shared(shared_map), extent);
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_global_stride(TensorMap* map, u64 stride_bytes) {
    static_assert(kOrdinal >= 0 && kOrdinal < 4, "an ordinal of the map");
    tmaasync_emulate::replace_in_map(
        map, tmaasync_emulate::MapField::kGlobalStride, kOrdinal, stride_bytes
    );
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_global_stride(u32 shared_map, u64 stride_bytes) {
    tensormap_replace_global_stride<kOrdinal>(map_in_shared(shared_map), stride_bytes);
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_box_dim(TensorMap* map, u32 side) {
    static_assert(kOrdinal >= 0 && kOrdinal < 5, "an ordinal of the map");
    tmaasync_emulate::replace_in_map(map, tmaasync_emulate::MapField::kBoxDim, kOrdinal, side);
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_box_dim(u32 shared_map, u32 side) {
    tensormap_replace_box_dim<kOrdinal>(map_in_shared(shared_map), side);
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_element_stride(TensorMap* map, u32 stride) {
    static_assert(kOrdinal >= 0 && kOrdinal < 5, "an ordinal of the map");
    tmaasync_emulate::replace_in_map(
        map, tmaasync_emulate::MapField::kElementStride, kOrdinal, stride
    );
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_element_stride(u32 shared_map, u32 stride) {
    tensormap_replace_element_stride<kOrdinal>(map_in_shared(shared_map), stride);
}

template <int kType>
__device__ __forceinline__ void tensormap_replace_elemtype(TensorMap* map) {
    tmaasync_emulate::replace_in_map(map, tmaasync_emulate::MapField::kElementType, 0, kType);
}

template <int kType>
__device__ __forceinline__ void tensormap_replace_elemtype(u32 shared_map) {
    tensormap_replace_elemtype<kType>(map_in_shared(shared_map));
}

template <int kLayout>
__device__ __forceinline__ void tensormap_replace_interleave_layout(TensorMap* map) {
    tmaasync_emulate::replace_in_map(map, tmaasync_emulate::MapField::kInterleave, 0, kLayout);
}

template <int kLayout>
__device__ __forceinline__ void tensormap_replace_interleave_layout(u32 shared_map) {
    tensormap_replace_interleave_layout<kLayout>(map_in_shared(shared_map));
}

template <int kMode>
__device__ __forceinline__ void tensormap_replace_swizzle_mode(TensorMap* map) {
    tmaasync_emulate::replace_in_map(map, tmaasync_emulate::MapField::kSwizzle, 0, kMode);
}

template <int kMode>
__device__ __forceinline__ void tensormap_replace_swizzle_mode(u32 shared_map) {
    tensormap_replace_swizzle_mode<kMode>(map_in_shared(shared_map));
}

template <int kFill>
__device__ __forceinline__ void tensormap_replace_fill_mode(TensorMap* map) {
    tmaasync_emulate::replace_in_map(map, tmaasync_emulate::MapField::kFill, 0, kFill);
}

template <int kFill>
__device__ __forceinline__ void tensormap_replace_fill_mode(u32 shared_map) {
    tensormap_replace_fill_mode<kFill>(map_in_shared(shared_map));
}

__device__ __forceinline__ void fence_proxy_tensormap_release_gpu() {
    tmaasync_emulate::fence_maps_release();
}

__device__ __forceinline__ void tensormap_cp_fenceproxy(TensorMap* map, u32 shared_map) {
    tmaasync_emulate::copy_map_and_release(map, shared_map);
}

}  // namespace tmaasync::ptx
