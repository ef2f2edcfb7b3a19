#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// The start of a share, if `count` blocks are divided into shares that are equal up to one block.
__device__ __forceinline__ int start_of_share(int count, int share, int shares) {
    return count / shares * share + min(count % shares, share);
}

// A range of the blocks along K: all blocks, or with split-K one of `splits` shares. Shares are
// equal up to one block, and may be empty.
struct KRange {
    int first;
    int count;

    __device__ __forceinline__ explicit KRange(int blocks) : first(0), count(blocks) {}
    __device__ __forceinline__ KRange(int blocks, int rank, int splits)
        : first(start_of_share(blocks, rank, splits)),
          count(start_of_share(blocks, rank + 1, splits) - first) {}

    // The range of this CTA in the cluster.
    template <typename Cluster>
    __device__ __forceinline__ static KRange of(int blocks) {
        if constexpr (Cluster::kSplitK == 1) return KRange(blocks);
        return KRange(blocks, Cluster::split_rank(), Cluster::kSplitK);
    }

    // The blocks from `first` up to `end`.
    __device__ __forceinline__ static KRange between(int first, int end) {
        KRange range(end - first);
        range.first = first;
        return range;
    }
};

}  // namespace tmaasync
