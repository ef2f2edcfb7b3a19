#pragma once

#include <tmaasync/operands/integers.cuh>

// Reductions over the lanes of a warp, by shuffles.
namespace tmaasync {

constexpr u32 kWholeWarp = 0xffffffff;

// Four neighbouring lanes of a warp share a row.
__device__ __forceinline__ float max_of_row(float value) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 1));
    return fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 2));
}

__device__ __forceinline__ float sum_of_row(float value) {
    value += __shfl_xor_sync(kWholeWarp, value, 1);
    return value + __shfl_xor_sync(kWholeWarp, value, 2);
}

__device__ __forceinline__ float max_of_warp(float value) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, lanes));
    }
    return value;
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(kWholeWarp, value, lanes);
    }
    return value;
}

}  // namespace tmaasync
