// All-gather + GEMM: C[M, N] = A[M, K] B[K, N], where every rank has a shard of the rows of A and
// its own B. One warp of each CTA pushes the own shard into the buffers of all ranks
// (gather_round.cuh). The producer loads tiles within the own shard from there. For all others it
// waits until another warp, whose lanes look at many signals at once, has seen that they arrived.
// Tiles, constants and grid are as in gemm.cu, without split-K and batch. In addition:
//
//   PushTile, PUSH_STAGES    see gather_round.cuh
//
// gathered[h] is A in half h of the own buffer; targets[h * ranks + r] has the rows of the own
// shard in half h of the buffer of rank r. Rounds alternate between the halves: a rank that has
// entered round i is done with the half that round i - 1 used, so its peers are at most one round
// ahead. All CTAs are resident at once, since they wait for other ranks. CTAs without a tile still
// push.
#include "all_gather.cuh"
#include "unscaled_wgmma.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int all_gather_gemm_shared_bytes =
    sizeof(GatherMemory<UnscaledOperands>);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) all_gather_gemm(
    const __grid_constant__ ATile own,
    const __grid_constant__ PushTile pushed,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const TMATensorTileArray<ATile> gathered,
    const TMATensorTileArray<PushTile> targets,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    int m,
    int n,
    int k
) {
    gather_and_multiply<UnscaledOperands>(
        [&](u32) { return UnscaledOperands{b}; }, [](const GatherRound&) {},
        {own, pushed, c, gathered, targets, signals, shards, rounds, m, n, k}, own, pushed, b, c
    );
}
