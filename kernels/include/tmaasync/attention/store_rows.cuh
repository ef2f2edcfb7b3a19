#pragma once

#include <tmaasync/attention/softmax.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/fragment.cuh>
#include <tmaasync/operands/target.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/warp.cuh>

namespace tmaasync {

// Multiply the accumulators' rows by `normalizers`, stage them in `staged` as Output, and call
// store_staged() in one thread, which issues TMA stores, commit_group() and any further steps.
// Called by a consumer warpgroup, which uses named barrier 1 + consumer.
template <typename Output, typename Shared, int kAccumulators, typename StoreStaged>
__device__ __forceinline__ void store_attention_rows(
    Shared& staged,
    float (&accumulators)[kAccumulators],
    const float (&normalizers)[2],
    int consumer,
    const StoreStaged& store_staged
) {
    const NamedBarrier<128> warpgroup{1u + consumer};
    const bool leads = thread_in_warpgroup() == 0;
    if (leads) wait_group_read<0>();  // until the previous store has read `staged`
    warpgroup.sync();
    scale_rows(accumulators, normalizers);
    // A row that the compiler does not know: else it computes the addresses ahead of all tiles, and
    // spills them.
    u32 first_row = 0;
    if constexpr (kConvertsFp8) first_row = __shfl_sync(kWholeWarp, first_row, 0);
    store_accumulators<Output, 2 * kAccumulators>(staged, accumulators, first_row);
    fence_async_view_proxy();
    warpgroup.sync();
    if (leads) store_staged();
    // Reconverge: the assembler keeps warp-uniform values, such as pipeline states, in uniform
    // registers only if it knows that the warp has converged.
    __syncwarp();
}

}  // namespace tmaasync
