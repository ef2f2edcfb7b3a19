// Doubles a matrix, a tile at a time, with cuda::ptx: a producer warp fills a ring of stages by
// TMA, a consumer warp empties it.
#include <cuda.h>

#include <cuda/ptx>

namespace ptx = cuda::ptx;

static constexpr int kStages = 2;
static constexpr int kRows = 8;
static constexpr int kColumns = 32;
static constexpr uint32_t kBytes = kRows * kColumns * sizeof(int);

extern "C" __global__ void ring(const __grid_constant__ CUtensorMap in, int* out, int tiles) {
    __shared__ alignas(128) int stage[kStages][kRows * kColumns];
    __shared__ uint64_t full[kStages], empty[kStages];

    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) {
            ptx::mbarrier_init(&full[i], 1);
            ptx::mbarrier_init(&empty[i], 32);
        }
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();

    if (threadIdx.x / 32 == 0) {
        if (threadIdx.x != 0) return;
        for (int tile = 0; tile < tiles; ++tile) {
            const int i = tile % kStages, phase = tile / kStages % 2;
            while (!ptx::mbarrier_try_wait_parity(&empty[i], phase ^ 1)) {}
            ptx::mbarrier_arrive_expect_tx(
                ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[i], kBytes
            );
            const int32_t at[2] = {0, tile * kRows};
            ptx::cp_async_bulk_tensor(
                ptx::space_cluster, ptx::space_global, stage[i], &in, at, &full[i]
            );
        }
    } else {
        for (int tile = 0; tile < tiles; ++tile) {
            const int i = tile % kStages, phase = tile / kStages % 2;
            while (!ptx::mbarrier_try_wait_parity(&full[i], phase)) {}
            for (int k = threadIdx.x % 32; k < kRows * kColumns; k += 32) {
                out[tile * kRows * kColumns + k] = 2 * stage[i][k];
            }
            ptx::mbarrier_arrive(&empty[i]);
        }
    }
}
