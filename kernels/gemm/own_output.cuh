#pragma once

#include "reduce_scatter.cuh"

namespace tmaasync::kernels::gemm {

// Outputs of a reduce-scatter: the own output alone.
struct OwnOutput {
    static constexpr bool kIsShared = false;

    const CTile& c;

    template <typename Chunk>
    __device__ __forceinline__ void store(const Chunk& chunk, Coordinates<2> at) const {
        c.async_store(chunk, at);
    }
};

}  // namespace tmaasync::kernels::gemm
