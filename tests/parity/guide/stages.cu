// Squares an array in batches. Copies of the next batch run while one is computed: a block's
// pipeline over stages in shared memory.
#include <cooperative_groups.h>

#include <cuda/pipeline>

namespace cg = cooperative_groups;

static constexpr int kStages = 2;

extern "C" __global__ void stages(const int* in, int* out, size_t batches) {
    const auto grid = cg::this_grid();
    const auto block = cg::this_thread_block();
    extern __shared__ int shared[];  // kStages * block.size()
    const size_t offset[kStages] = {0, block.size()};
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, kStages> state;
    auto pipeline = cuda::make_pipeline(block, &state);
    const auto batch_at = [&](size_t batch) {
        return block.group_index().x * block.size() + grid.size() * batch;
    };

    for (size_t computed = 0, fetched = 0; computed < batches; ++computed) {
        for (; fetched < batches && fetched < computed + kStages; ++fetched) {
            pipeline.producer_acquire();
            cuda::memcpy_async(
                block, shared + offset[fetched % kStages], in + batch_at(fetched),
                sizeof(int) * block.size(), pipeline
            );
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        // The value that another thread copied.
        const int rank = block.thread_rank() ^ 1;
        const int value = shared[offset[computed % kStages] + rank];
        out[batch_at(computed) + rank] = value * value;
        pipeline.consumer_release();
    }
}
