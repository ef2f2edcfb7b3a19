// The backward of attention.cu: computes dK and dV, and dQ in the workspace, from dO. A
// warp-specialised persistent kernel after FlashAttention-3 (Shah et al. 2024). A CTA processes a
// tile of keys, whose dK and dV stay in registers, and loops over the queries that attend to them.
// TMA adds their dQ to fp32 memory (cp.reduce.async.bulk). attention_backward_rows.cu runs before
// this kernel, and attention_backward_dq.cu, which converts dQ, after it.
//
//   QTile             BLOCK_M rows of queries or dO, over the whole head dimension
//   KTile             64 rows of keys, values, dK or dV
//   BLOCK_M           queries per block: 64, or 128 with 64 columns, or 80 with 128
//   HEAD_DIM          columns of the tiles: the head dimension, zero-padded to 64 or 128
//   STAGES            stages of each pipeline, of queries and of dO
//   STARTS_LAST       whether a CTA visits the last block of queries first
//   ALTERNATES        whether every other wave of tiles visits blocks from first to last
//   TILES_DESCEND     whether the tiles of a head are scheduled from the last keys to the first
//   IS_PACKED         whether sequences are packed back to back (varlen)
//   HAS_LEFT          whether keys far before a position are masked: a sliding window
//   HAS_RIGHT         whether keys far after a position are masked: a window, or a causal mask
//   HAS_SOFTCAP       whether scores are cap * tanh(score / cap)
//   IS_DETERMINISTIC  whether tiles of keys add to dQ in a fixed order
//   ADDS_KEYS         whether dK and dV are added to the arrays, in their type, not stored
//
// Grid: any number of CTAs, of 384 threads. At the edges of the arrays TMA fills loads with zeros,
// so that no NaN of other data is read, and clips stores.
#include <tmaasync/structured/dynamic_scheduler.cuh>
#include <tmaasync/structured/roles.cuh>

#include "abi.cuh"
#include "consumer.cuh"
#include "pipeline.cuh"
#include "producer.cuh"
#include "reduction.cuh"
#include "scheduler.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::attention_backward;

// Without wgmma the producer's addresses, or the consumers' 128 columns, need the registers.
constexpr bool kProducerHasMore = !kHasWgmma && HEAD_DIM == 64;
using Registers = RegisterSplit<kProducerHasMore ? 40 : 24, kProducerHasMore ? 232 : 240>;
using Roles = WarpSpecialized<kConsumers, Registers>;

extern "C" __device__ const int attention_backward_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) attention_backward(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ KTile v,
    const __grid_constant__ QTile dout,
    const __grid_constant__ KTile dk,
    const __grid_constant__ KTile dv,
    const RowStatistics* statistics,
    DqTile* dq,
    u32* turns,
    u32* tile_counter,
    const i32* cu_seqlens_q,
    const i32* cu_seqlens_k,
    const __grid_constant__ BackwardProblem problem
) {
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run_with_helpers(
        shared,
        [&] {
            // attention_backward_rows.cu has counted the sequences.
            const i32 count = static_cast<i32>(tile_counter[1]);
            const Sequences sequences{problem, cu_seqlens_q, cu_seqlens_k, count};
            Producer producer(problem, q, k, v, dout, statistics, shared);
            load_tiles(producer, DynamicScheduler<KeyTiles>({sequences}, tile_counter));
        },
        [&](int number) {
            if (number >= kConsumers) return;
            wait_for_previous_grids();
            Reduction{shared, problem, dq, dk, dv, {turns}, static_cast<u32>(number)}.run();
        },
        [&](int index) { Consumer(shared, problem, index).run(); }, q, k, v, dout, dk, dv
    );
}
