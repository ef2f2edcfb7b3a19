// Sums an array: each warp by reduce, each block in shared memory, the grid after a barrier.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

extern "C" __global__ void reduction(const int* in, int* sums, int size, int rounds) {
    __shared__ int of_warps[32];
    const auto grid = cg::this_grid();
    const auto block = cg::this_thread_block();
    const auto warp = cg::tiled_partition<32>(block);

    for (int round = 0; round < rounds; ++round) {
        int value = 0;
        for (int i = grid.thread_rank(); i < size; i += grid.size()) value += in[i];
        value = cg::reduce(warp, value, cg::plus<int>());
        if (warp.thread_rank() == 0) of_warps[warp.meta_group_rank()] = value;
        block.sync();
        if (warp.meta_group_rank() == 0) {
            const int mine =
                warp.thread_rank() < warp.meta_group_size() ? of_warps[warp.thread_rank()] : 0;
            const int total = cg::reduce(warp, mine, cg::plus<int>());
            if (warp.thread_rank() == 0) sums[1 + block.group_index().x] = total;
        }
        grid.sync();
        if (grid.thread_rank() == 0) {
            int total = 0;
            for (int i = 0; i < grid.num_blocks(); ++i) total += sums[1 + i];
            sums[0] = total + round;
        }
        grid.sync();
    }
}
