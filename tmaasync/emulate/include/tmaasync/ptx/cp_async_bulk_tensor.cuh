#pragma once

#include <tmaasync/ptx/integers.cuh>
#include <tmaasync/ptx/operands.cuh>
#include <tmaasync/ptx/tensormap.cuh>

namespace tmaasync::ptx {

// The map as it is now, and where the box starts. Faults if the map has another rank.
template <typename Copy, int kRank>
__device__ Copy
emulated_copy(tmaasync_emulate::Fiber& fiber, const TensorMap* map, Coordinates<kRank> at) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    Copy copy{};
    copy.map = tmaasync_emulate::decode_for(fiber, map);
    if (copy.map.rank != kRank) {
        fiber.cluster->fail(fiber, "the instruction and its tensor map have different ranks");
    }
    for (int dim = 0; dim < kRank; ++dim) copy.at[dim] = at.values[dim];
    copy.bytes = copy.map.rows * copy.map.row_pitch_bytes;
    return copy;
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u64 policy
) {
    using namespace tmaasync_emulate;
    (void)policy;
    Fiber& fiber = current_fiber();
    issue_load(fiber, emulated_copy<Flight>(fiber, map, at), shared, barrier);
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_im2col(
    u32 shared,
    const TensorMap* map,
    Coordinates<kRank> at,
    const u16 (&offsets)[kRank - 2],
    u32 barrier,
    u64 policy
) {
    using namespace tmaasync_emulate;
    static_assert(kRank >= 3 && kRank <= 5, "an im2col map has 3 to 5 dimensions");
    (void)policy;
    Fiber& fiber = current_fiber();
    Flight flight = emulated_copy<Flight>(fiber, map, at);
    flight.kind = Flight::Kind::kIm2col;
    for (int spatial = 0; spatial < kRank - 2; ++spatial) {
        flight.offsets[spatial] = offsets[spatial];
    }
    issue_load(fiber, flight, shared, barrier);
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_multicast(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u16 cta_mask, u64 policy
) {
    using namespace tmaasync_emulate;
    (void)policy;
    Fiber& fiber = current_fiber();
    issue_multicast(fiber, emulated_copy<Flight>(fiber, map, at), shared, barrier, cta_mask);
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_store(
    const TensorMap* map, Coordinates<kRank> at, u32 shared, u64 policy
) {
    using namespace tmaasync_emulate;
    (void)policy;
    Fiber& fiber = current_fiber();
    issue_store(fiber, emulated_copy<Store>(fiber, map, at), shared);
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor(
    const TensorMap* map, Coordinates<kRank> at, u64 policy
) {
    using namespace tmaasync_emulate;
    (void)policy;
    emulated_copy<Flight>(current_fiber(), map, at);
}

template <ReduceOp kOp, int kRank>
__device__ __forceinline__ void cp_reduce_async_bulk_tensor(
    const TensorMap* map, Coordinates<kRank> at, u32 shared, u64 policy
) {
    using namespace tmaasync_emulate;
    (void)policy;
    Fiber& fiber = current_fiber();
    Store store = emulated_copy<Store>(fiber, map, at);
    store.kind = Store::Kind::kReduce;
    store.op = static_cast<tmaasync_emulate::ReduceOp>(kOp);
    issue_store(fiber, store, shared);
}

}  // namespace tmaasync::ptx
