// Adds one to an array, a chunk a block: TMA copies without a tensor map, in and out.
#include <cuda/barrier>
#include <cuda/std/utility>

using barrier = cuda::barrier<cuda::thread_scope_block>;
namespace cde = cuda::device::experimental;

static constexpr size_t kElements = 512;

extern "C" __global__ void bulk_copy(int* data, size_t offset) {
    __shared__ alignas(16) int buffer[kElements];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ barrier bar;
    int* const chunk = data + offset + blockIdx.x * kElements;

    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        cde::fence_proxy_async_shared_cta();
    }
    __syncthreads();

    barrier::arrival_token token;
    if (threadIdx.x == 0) {
        const cuda::aligned_size_t<16> bytes(sizeof(buffer));
        cuda::device::memcpy_async_tx(buffer, chunk, bytes, bar);
        token = cuda::device::barrier_arrive_tx(bar, 1, bytes);
    } else {
        token = bar.arrive();
    }
    bar.wait(cuda::std::move(token));

    for (int i = threadIdx.x; i < kElements; i += blockDim.x) buffer[i] += 1;

    cde::fence_proxy_async_shared_cta();
    __syncthreads();

    if (threadIdx.x == 0) {
        cde::cp_async_bulk_shared_to_global(chunk, buffer, sizeof(buffer));
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
}
