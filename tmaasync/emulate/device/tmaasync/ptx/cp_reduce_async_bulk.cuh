#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void cp_reduce_async_bulk(
    void* global, u32 shared, u32 bytes, u64 policy
) {
    static_assert(reduces_in_global(kOp, kType), "sm_90 lacks this reduction into global memory");
    (void)policy;
    tmaasync_emulate::bulk_reduce(
        {static_cast<int>(kOp), static_cast<int>(kType)}, global, shared, bytes
    );
}

template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void cp_reduce_async_bulk_push(
    u32 remote_shared, u32 shared, u32 bytes, u32 remote_barrier
) {
    static_assert(reduces_in_shared(kOp, kType), "sm_90 lacks this reduction into shared memory");
    const tmaasync_emulate::Reduction reduction{static_cast<int>(kOp), static_cast<int>(kType)};
    tmaasync_emulate::bulk_push(remote_shared, shared, bytes, remote_barrier, &reduction);
}

}  // namespace tmaasync::ptx
