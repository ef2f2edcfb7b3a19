// Adds one to a box of a matrix, through a tensor map.
#include <cuda.h>

#include <cuda/barrier>
#include <cuda/std/utility>

using barrier = cuda::barrier<cuda::thread_scope_block>;
namespace cde = cuda::device::experimental;

static constexpr int kRows = 16;
static constexpr int kColumns = 32;

extern "C" __global__ void tensor_copy(
    const __grid_constant__ CUtensorMap tensor_map, int x, int y
) {
    __shared__ alignas(128) int box[kRows][kColumns];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ barrier bar;

    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        cde::fence_proxy_async_shared_cta();
    }
    __syncthreads();

    barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_tensor_2d_global_to_shared(&box, &tensor_map, x, y, bar);
        token = cuda::device::barrier_arrive_tx(bar, 1, sizeof(box));
    } else {
        token = bar.arrive();
    }
    bar.wait(std::move(token));

    for (int i = threadIdx.x; i < kRows * kColumns; i += blockDim.x) {
        box[i / kColumns][i % kColumns] += 1;
    }

    cde::fence_proxy_async_shared_cta();
    __syncthreads();

    if (threadIdx.x == 0) {
        cde::cp_async_bulk_tensor_2d_shared_to_global(&tensor_map, x, y, &box);
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
}
