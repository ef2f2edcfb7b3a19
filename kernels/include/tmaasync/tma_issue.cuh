#pragma once

#include <tmaasync/cache_policy.cuh>
#include <tmaasync/instrument/draining.cuh>
#include <tmaasync/instrument/trace.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/cp_async_bulk.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor_im2col.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor_im2col_w.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor_rows.cuh>
#include <tmaasync/ptx/cp_reduce_async_bulk.cuh>

// Issue one TMA instruction: the one header in which tiles and raw copies issue instructions, and
// where debug and traced builds watch them. A kernel that drains copies nothing; a traced one notes
// each load and store. Arguments are the instruction's.
namespace tmaasync::tma {

using ptx::Coordinates;
using ptx::ElementType;
using ptx::ReduceOp;
using ptx::TensorMap;

// --- through a tensor map ------------------------------------------------------------------------

template <int kRank, int kCtaGroup = 1>
__device__ __forceinline__ void load(
    u32 shared, const TensorMap& map, Coordinates<kRank> at, u32 barrier, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_load(shared, barrier);
    ptx::cp_async_bulk_tensor_load<kRank, kCtaGroup>(
        shared, &map, at, barrier, static_cast<u64>(policy)
    );
}

template <int kRank, int kCtaGroup = 1>
__device__ __forceinline__ void load_multicast(
    u32 shared,
    const TensorMap& map,
    Coordinates<kRank> at,
    u32 barrier,
    u16 cta_mask,
    CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_load(shared, barrier, 0, cta_mask);
    ptx::cp_async_bulk_tensor_load_multicast<kRank, kCtaGroup>(
        shared, &map, at, barrier, cta_mask, static_cast<u64>(policy)
    );
}

template <int kRank, int kCtaGroup = 1>
__device__ __forceinline__ void load_im2col(
    u32 shared,
    const TensorMap& map,
    Coordinates<kRank> at,
    const u16 (&offsets)[kRank - 2],
    u32 barrier,
    CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_load(shared, barrier);
    ptx::cp_async_bulk_tensor_load_im2col<kRank, kCtaGroup>(
        shared, &map, at, offsets, barrier, static_cast<u64>(policy)
    );
}

template <int kRank>
__device__ __forceinline__ void load_im2col_multicast(
    u32 shared,
    const TensorMap& map,
    Coordinates<kRank> at,
    const u16 (&offsets)[kRank - 2],
    u32 barrier,
    u16 cta_mask,
    CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_load(shared, barrier, 0, cta_mask);
    ptx::cp_async_bulk_tensor_load_im2col_multicast<kRank>(
        shared, &map, at, offsets, barrier, cta_mask, static_cast<u64>(policy)
    );
}

template <int kRank, bool kIs128>
__device__ __forceinline__ void load_im2col_w(
    u32 shared,
    const TensorMap& map,
    Coordinates<kRank> at,
    const u16 (&offsets)[2],
    u32 barrier,
    CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_load(shared, barrier);
    ptx::cp_async_bulk_tensor_load_im2col_w<kRank, kIs128>(
        shared, &map, at, offsets, barrier, static_cast<u64>(policy)
    );
}

template <int kRank>
__device__ __forceinline__ void store(
    const TensorMap& map, Coordinates<kRank> at, u32 shared, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_store(shared);
    ptx::cp_async_bulk_tensor_store<kRank>(&map, at, shared, static_cast<u64>(policy));
}

template <ReduceOp kOp, int kRank>
__device__ __forceinline__ void reduce(
    const TensorMap& map, Coordinates<kRank> at, u32 shared, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_store(shared);
    ptx::cp_reduce_async_bulk_tensor<kOp, kRank>(&map, at, shared, static_cast<u64>(policy));
}

template <int kRank>
__device__ __forceinline__ void prefetch(
    const TensorMap& map, Coordinates<kRank> at, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    ptx::cp_async_bulk_prefetch_tensor<kRank>(&map, at, static_cast<u64>(policy));
}

template <int kRank>
__device__ __forceinline__ void prefetch_im2col(
    const TensorMap& map, Coordinates<kRank> at, const u16 (&offsets)[kRank - 2], CachePolicy policy
) {
    if (instrument::is_draining()) return;
    ptx::cp_async_bulk_prefetch_tensor_im2col<kRank>(&map, at, offsets, static_cast<u64>(policy));
}

// Four rows of a matrix, by a map whose box is one row.
__device__ __forceinline__ void load_rows(
    u32 shared,
    const TensorMap& map,
    i32 column,
    const i32 (&rows)[4],
    u32 barrier,
    CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_load(shared, barrier);
    ptx::cp_async_bulk_tensor_gather4(
        shared, &map, {column, rows[0], rows[1], rows[2], rows[3]}, barrier,
        static_cast<u64>(policy)
    );
}

__device__ __forceinline__ void store_rows(
    const TensorMap& map, i32 column, const i32 (&rows)[4], u32 shared, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_store(shared);
    ptx::cp_async_bulk_tensor_scatter4(
        &map, {column, rows[0], rows[1], rows[2], rows[3]}, shared, static_cast<u64>(policy)
    );
}

// --- between plain addresses ---------------------------------------------------------------------

__device__ __forceinline__ void load_bulk(
    u32 shared, const void* global, u32 bytes, u32 barrier, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_load(shared, barrier, bytes);
    ptx::cp_async_bulk_load(shared, global, bytes, barrier, static_cast<u64>(policy));
}

__device__ __forceinline__ void load_bulk_multicast(
    u32 shared, const void* global, u32 bytes, u32 barrier, u16 cta_mask, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_load(shared, barrier, bytes, cta_mask);
    ptx::cp_async_bulk_load_multicast(
        shared, global, bytes, barrier, cta_mask, static_cast<u64>(policy)
    );
}

__device__ __forceinline__ void store_bulk(
    void* global, u32 shared, u32 bytes, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_store(shared, bytes);
    ptx::cp_async_bulk_store(global, shared, bytes, static_cast<u64>(policy));
}

template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void reduce_bulk(
    void* global, u32 shared, u32 bytes, CachePolicy policy
) {
    if (instrument::is_draining()) return;
    instrument::trace_store(shared, bytes);
    ptx::cp_reduce_async_bulk<kOp, kType>(global, shared, bytes, static_cast<u64>(policy));
}

__device__ __forceinline__ void prefetch_bulk(const void* global, u32 bytes, CachePolicy policy) {
    if (instrument::is_draining()) return;
    ptx::cp_async_bulk_prefetch(global, bytes, static_cast<u64>(policy));
}

// --- from CTA to CTA -----------------------------------------------------------------------------

__device__ __forceinline__ void push(u32 remote_shared, u32 shared, u32 bytes, u32 remote_barrier) {
    if (instrument::is_draining()) return;
    ptx::cp_async_bulk_push(remote_shared, shared, bytes, remote_barrier);
}

template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void reduce_push(
    u32 remote_shared, u32 shared, u32 bytes, u32 remote_barrier
) {
    if (instrument::is_draining()) return;
    ptx::cp_reduce_async_bulk_push<kOp, kType>(remote_shared, shared, bytes, remote_barrier);
}

}  // namespace tmaasync::tma
