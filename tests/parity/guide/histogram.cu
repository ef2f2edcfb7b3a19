// A histogram whose bins are spread over the shared memory of a cluster.
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

extern "C" __global__ void histogram(
    int* bins, int count, int bins_of_block, const int* in, int size
) {
    extern __shared__ int own[];
    const auto cluster = cg::this_cluster();
    const auto rank = cluster.block_rank();
    const int blocks = cluster.dim_blocks().x;

    for (int i = threadIdx.x; i < bins_of_block; i += blockDim.x) own[i] = 0;
    cluster.sync();

    for (int i = cg::this_grid().thread_rank(); i < size; i += blockDim.x * gridDim.x) {
        const int value = in[i];
        const int bin = value < 0 ? 0 : value >= count ? count - 1 : value;
        int* const theirs = cluster.map_shared_rank(own, bin / bins_of_block);
        atomicAdd(theirs + bin % bins_of_block, 1);
    }
    cluster.sync();

    int* const target = bins + rank * bins_of_block;
    for (int i = threadIdx.x; i < bins_of_block && rank * bins_of_block + i < count;
         i += blockDim.x) {
        atomicAdd(&target[i], own[i]);
    }
    (void)blocks;
}
