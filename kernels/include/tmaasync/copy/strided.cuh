#pragma once

#include <tmaasync/operands/copies.cuh>

namespace tmaasync {

using ptx::Coordinates;

// An array of any strides and any alignment, for threads that reach it by themselves; the host's
// StridedTensor fills it in. Everything runs innermost first, as coordinates do.
template <typename T, int kDimensions>
struct StridedTensor {
    using Element = T;
    static constexpr int kRank = kDimensions;

    T* global;
    i64 strides_bytes[kRank];
    i32 extents[kRank];

    // True if the array has this index along a dimension.
    __device__ __forceinline__ bool has(int dim, i32 index) const {
        return static_cast<u32>(index) < static_cast<u32>(extents[dim]);
    }

    __device__ __forceinline__ bool contains(Coordinates<kRank> at) const {
        bool is_inside = true;
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) is_inside = is_inside && has(dim, at.values[dim]);
        return is_inside;
    }

    // Bytes from the first element to this one, if the array contains it.
    __device__ __forceinline__ i64 offset_bytes(Coordinates<kRank> at) const {
        i64 offset = 0;
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) offset += at.values[dim] * strides_bytes[dim];
        return offset;
    }

    __device__ __forceinline__ unsigned char* bytes() const {
        return reinterpret_cast<unsigned char*>(global);
    }
};

}  // namespace tmaasync
