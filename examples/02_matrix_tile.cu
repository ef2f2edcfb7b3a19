// New here: a tensor map. It describes the shape and strides of a matrix, so one
// instruction moves a two-dimensional tile. TMA fills elements out of bounds with zeros
// and clips them in stores: the kernel has no code for edges.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// The source tile has a halo: one more row above, and one more below.
static_assert(Source::side(0) == Target::side(0) + 2 && Source::side(1) == Target::side(1));
constexpr int kRows = Target::side(0);
constexpr int kColumns = Target::side(1);

// Thread i computes column i: each row plus the rows above and below it.
__device__ void add_neighbours(const Source::Shared& loaded, Target::Shared& result) {
    const float* in = loaded.data() + threadIdx.x;
    float* out = result.data() + threadIdx.x;
    for (int row = 0; row < kRows; ++row) {
        out[row * kColumns] =
            in[row * kColumns] + in[(row + 1) * kColumns] + in[(row + 2) * kColumns];
    }
}

extern "C" __global__ void vertical_stencil(
    const __grid_constant__ Source source, const __grid_constant__ Target target
) {
    __shared__ Source::Shared loaded;
    __shared__ Target::Shared result;
    __shared__ SharedMemBarrier full;
    // Coordinates count elements, innermost first.
    const int x = blockIdx.x * kColumns, y = blockIdx.y * kRows;

    if (threadIdx.x == 0) {
        full.init(1);
        fence_barrier_init();
        full.expect_bytes(Source::kBytes);            // the fill at the edges counts too
        source.async_copy(loaded, full, {x, y - 1});  // row -1 where y is 0
    }
    __syncthreads();  // the barrier is initialised for all threads
    full.wait(0);
    add_neighbours(loaded, result);

    fence_async_view_proxy();  // proxy fence: makes this thread's writes visible to TMA
    __syncthreads();
    if (threadIdx.x == 0) {
        target.async_store(result, {x, y});
        commit_group();
        wait_group_read<0>();
    }
}
