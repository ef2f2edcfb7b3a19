// GEMM + all-reduce: rank r multiplies its own A_r[M, K_r] B_r[K_r, N], and every rank receives the
// sum over all ranks. The owner of a shard adds up its rows (reduce_scatter.cuh) and stores them
// into the outputs of all ranks by TMA: all have the same bits. When the kernel ends, all rows have
// arrived. c_i is the output of rank i at the rows of this rank's shard; outputs after the last
// rank are not used. step_rows rows of each shard are sent while the rows before are added.
#include "../rank_tiles.cuh"
#include "reduce_scatter.cuh"
#include "unscaled_wgmma.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int gemm_all_reduce_shared_bytes =
    sizeof(ScatterMemory<UnscaledOperands>);

template <typename StoreToAll>
struct AllOutputs {
    static constexpr bool kIsShared = true;

    StoreToAll store_to_all;

    template <typename Chunk>
    __device__ __forceinline__ void store(const Chunk& chunk, Coordinates<2> at) const {
        store_to_all(chunk, at);
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm_all_reduce(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c_0,
    const __grid_constant__ CTile c_1,
    const __grid_constant__ CTile c_2,
    const __grid_constant__ CTile c_3,
    const __grid_constant__ CTile c_4,
    const __grid_constant__ CTile c_5,
    const __grid_constant__ CTile c_6,
    const __grid_constant__ CTile c_7,
    const TMATensorTileArray<CTile> sent,
    const Element* received_0,
    const Element* received_1,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    i64 matrix_elements,
    i64 row_elements,
    int m,
    int k,
    int step_rows
) {
    const AllOutputs outputs{[&](const auto& chunk, Coordinates<2> at) {
        const auto store = [&](const CTile& c) { c.async_store(chunk, at); };
        for_each_rank(signals.ranks, store, c_0, c_1, c_2, c_3, c_4, c_5, c_6, c_7);
    }};
    multiply_and_scatter(
        a, UnscaledOperands{b}, outputs,
        {sent, received_0, received_1, signals, shards, rounds, matrix_elements, row_elements, m, k,
         step_rows},
        a, b, c_0
    );
}
