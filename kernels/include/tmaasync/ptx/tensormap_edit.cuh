#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>

// PTX ISA: "tensormap.replace" (sm_90a), "tensormap.cp_fenceproxy" and the releasing half of
// "fence.proxy.tensormap". Each edit has two forms: a map in global memory, by its pointer, and a
// map in shared memory, by its shared address. One thread edits. Ordinals count dimensions
// innermost first, as coordinates do.
namespace tmaasync::ptx {

// The start of the tensor: a multiple of 16 bytes.
__device__ __forceinline__ void tensormap_replace_global_address(
    TensorMap* map, const void* address
) {
    asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map),
                 "l"(address)
                 : "memory");
}

__device__ __forceinline__ void tensormap_replace_global_address(
    u32 shared_map, const void* address
) {
    asm volatile(
        "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(shared_map),
        "l"(address)
        : "memory"
    );
}

// The number of dimensions less one.
__device__ __forceinline__ void tensormap_replace_rank(TensorMap* map, u32 rank_less_one) {
    asm volatile("tensormap.replace.tile.rank.global.b1024.b32 [%0], %1;" ::"l"(map),
                 "r"(rank_less_one)
                 : "memory");
}

__device__ __forceinline__ void tensormap_replace_rank(u32 shared_map, u32 rank_less_one) {
    asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], %1;" ::"r"(shared_map),
                 "r"(rank_less_one)
                 : "memory");
}

// Elements along a dimension.
template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_global_dim(TensorMap* map, u32 extent) {
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], %1, %2;" ::"l"(map),
                 "n"(kOrdinal), "r"(extent)
                 : "memory");
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_global_dim(u32 shared_map, u32 extent) {
    asm volatile(
        "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], %1, %2;" ::"r"(shared_map),
        "n"(kOrdinal), "r"(extent)
        : "memory"
    );
}

// Bytes from one index of dimension kOrdinal + 1 to the next: a multiple of 16. (PTX before CUDA
// 12.5 counted in units of 16 bytes.)
template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_global_stride(TensorMap* map, u64 stride_bytes) {
    static_assert(kOrdinal >= 0 && kOrdinal <= 3, "an ordinal of the map");
    asm volatile("tensormap.replace.tile.global_stride.global.b1024.b64 [%0], %1, %2;" ::"l"(map),
                 "n"(kOrdinal), "l"(stride_bytes)
                 : "memory");
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_global_stride(u32 shared_map, u64 stride_bytes) {
    static_assert(kOrdinal >= 0 && kOrdinal <= 3, "an ordinal of the map");
    asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], %1, %2;" ::"r"(
                     shared_map
                 ),
                 "n"(kOrdinal), "l"(stride_bytes)
                 : "memory");
}

// Elements of the box along a dimension.
template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_box_dim(TensorMap* map, u32 side) {
    asm volatile("tensormap.replace.tile.box_dim.global.b1024.b32 [%0], %1, %2;" ::"l"(map),
                 "n"(kOrdinal), "r"(side)
                 : "memory");
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_box_dim(u32 shared_map, u32 side) {
    asm volatile(
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], %1, %2;" ::"r"(shared_map),
        "n"(kOrdinal), "r"(side)
        : "memory"
    );
}

// The stride between the elements that are taken along a dimension.
template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_element_stride(TensorMap* map, u32 stride) {
    asm volatile("tensormap.replace.tile.element_stride.global.b1024.b32 [%0], %1, %2;" ::"l"(map),
                 "n"(kOrdinal), "r"(stride)
                 : "memory");
}

template <int kOrdinal>
__device__ __forceinline__ void tensormap_replace_element_stride(u32 shared_map, u32 stride) {
    asm volatile("tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], %1, %2;" ::"r"(
                     shared_map
                 ),
                 "n"(kOrdinal), "r"(stride)
                 : "memory");
}

// The element type, by the PTX ISA's number, which is not cuda.h's.
template <int kType>
__device__ __forceinline__ void tensormap_replace_elemtype(TensorMap* map) {
    asm volatile("tensormap.replace.tile.elemtype.global.b1024.b32 [%0], %1;" ::"l"(map), "n"(kType)
                 : "memory");
}

template <int kType>
__device__ __forceinline__ void tensormap_replace_elemtype(u32 shared_map) {
    asm volatile(
        "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], %1;" ::"r"(shared_map),
        "n"(kType)
        : "memory"
    );
}

// 0 none, 1 of 16 bytes, 2 of 32 bytes.
template <int kLayout>
__device__ __forceinline__ void tensormap_replace_interleave_layout(TensorMap* map) {
    asm volatile("tensormap.replace.tile.interleave_layout.global.b1024.b32 [%0], %1;" ::"l"(map),
                 "n"(kLayout)
                 : "memory");
}

template <int kLayout>
__device__ __forceinline__ void tensormap_replace_interleave_layout(u32 shared_map) {
    asm volatile("tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], %1;" ::"r"(
                     shared_map
                 ),
                 "n"(kLayout)
                 : "memory");
}

// 0 none, 1 of 32 bytes, 2 of 64, 3 of 128.
template <int kMode>
__device__ __forceinline__ void tensormap_replace_swizzle_mode(TensorMap* map) {
    asm volatile("tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%0], %1;" ::"l"(map),
                 "n"(kMode)
                 : "memory");
}

template <int kMode>
__device__ __forceinline__ void tensormap_replace_swizzle_mode(u32 shared_map) {
    asm volatile(
        "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], %1;" ::"r"(shared_map),
        "n"(kMode)
        : "memory"
    );
}

// The fill of a load out of bounds: 0 zero, 1 NaN.
template <int kFill>
__device__ __forceinline__ void tensormap_replace_fill_mode(TensorMap* map) {
    asm volatile("tensormap.replace.tile.fill_mode.global.b1024.b32 [%0], %1;" ::"l"(map),
                 "n"(kFill)
                 : "memory");
}

template <int kFill>
__device__ __forceinline__ void tensormap_replace_fill_mode(u32 shared_map) {
    asm volatile(
        "tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], %1;" ::"r"(shared_map),
        "n"(kFill)
        : "memory"
    );
}

// Publish this thread's edits of maps in global memory: a fence_proxy_tensormap_acquire_gpu that
// follows, by any thread of the GPU, sees them.
__device__ __forceinline__ void fence_proxy_tensormap_release_gpu() {
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

// Copy an edited map from shared to global memory and release it there. A whole converged warp.
__device__ __forceinline__ void tensormap_cp_fenceproxy(TensorMap* map, u32 shared_map) {
    asm volatile(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
        " [%0], [%1], 128;" ::"l"(map),
        "r"(shared_map)
        : "memory"
    );
}

}  // namespace tmaasync::ptx
