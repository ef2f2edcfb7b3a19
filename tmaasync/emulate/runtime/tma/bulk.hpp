// Copies without a tensor map.
#pragma once

#include <cstdint>
#include <cstring>

#include "tma/reduce.hpp"
#include "tma/rows.hpp"

namespace tmaasync_emulate {

namespace detail {

// Measured: another alignment is a misaligned-address fault.
inline void check_bulk_addresses(const void* global, uint32_t shared_offset) {
    const auto address = reinterpret_cast<uintptr_t>(global);
    check_shared_alignment(shared_offset, kUnitBytes);
    if (address % kUnitBytes == 0) return;
    fault(FaultKind::kBulkAddress, hexadecimal(address));
}

template <class Observer>
void access_bulk(Observer& observer, const void* global, uint32_t bytes, bool is_write) {
    if constexpr (requires { observer.is_inside(global, uint64_t{bytes}); }) {
        if (!observer.is_inside(global, uint64_t{bytes})) {
            const auto address = reinterpret_cast<uintptr_t>(global);
            fault(FaultKind::kBulkOutside, verb_of(is_write), bytes, hexadecimal(address));
        }
    }
    observer.global(global, bytes, is_write);
}

// Measured: a load drops the bytes beyond a multiple of 16. Copies between shared memories and
// reductions were not measured, so they are not assumed to drop any.
inline void check_bulk_size(FaultKind what, uint32_t bytes) {
    if (bytes % kUnitBytes) fault(FaultKind::kBulkSize, what, bytes);
}

// Reports the units of shared memory that are about to be read.
template <class Observer>
void report_sources(Observer& observer, const uint8_t* base, uint32_t offset, uint32_t bytes) {
    if constexpr (requires { observer.source(base, offset, bytes); }) {
        for (uint32_t unit = 0; unit + kUnitBytes <= bytes; unit += kUnitBytes) {
            observer.source(base, offset + unit, kUnitBytes);
        }
    }
}

// Measured: bytes beyond a multiple of 16 are neither moved nor credited.
inline uint32_t bulk_bytes(uint32_t bytes) {
    return bytes / kUnitBytes * kUnitBytes;
}

}  // namespace detail

// Copies from global to shared memory. Returns the bytes moved, which are credited to the barrier.
template <class Observer = NoObserver>
uint32_t bulk_load(
    const void* global,
    uint32_t bytes,
    uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    detail::check_bulk_addresses(global, shared_offset);
    const uint32_t moved = detail::bulk_bytes(bytes);
    if (moved == 0) return 0;
    detail::access_bulk(observer, global, moved, false);
    std::memcpy(cta_shared_base + shared_offset, global, moved);
    observer.shared(shared_offset, moved, true);
    return moved;
}

// Copies from shared to global memory. Returns the bytes moved.
template <class Observer = NoObserver>
uint32_t bulk_store(
    void* global,
    uint32_t bytes,
    const uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    detail::check_bulk_addresses(global, shared_offset);
    const uint32_t moved = detail::bulk_bytes(bytes);
    if (moved == 0) return 0;
    detail::access_bulk(observer, global, moved, true);
    detail::report_sources(observer, cta_shared_base, shared_offset, moved);
    std::memcpy(global, cta_shared_base + shared_offset, moved);
    observer.shared(shared_offset, moved, false);
    return moved;
}

// Copies byte i of every 16 whose bit i is set (.cp_mask).
template <class Observer>
void bulk_store_masked(
    void* global,
    uint32_t bytes,
    uint32_t byte_mask,
    const uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer
) {
    detail::check_bulk_addresses(global, shared_offset);
    auto* const target = static_cast<uint8_t*>(global);
    for (uint32_t at = 0; at < detail::bulk_bytes(bytes); ++at) {
        if (!(byte_mask >> at % kUnitBytes & 1)) continue;
        detail::access_bulk(observer, target + at, 1, true);
        if constexpr (requires { observer.source(cta_shared_base, shared_offset, 1u); }) {
            observer.source(cta_shared_base, shared_offset + at, 1);
        }
        target[at] = cta_shared_base[shared_offset + at];
        observer.shared(shared_offset + at, 1, false);
    }
}

// The reduction of an instruction without a map. For bitwise operations only the size counts.
inline detail::RowReduction bulk_reduction(ReduceOp op, ElementType type) {
    const bool takes_bits = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
    const bool is_long = takes_bits && type == ElementType::kInt64;
    return detail::reduction(op, is_long ? ElementType::kUint64 : type);
}

// Reduces shared memory into global memory.
template <class Observer = NoObserver>
void bulk_reduce(
    ReduceOp op,
    ElementType type,
    void* global,
    uint32_t bytes,
    const uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    detail::check_bulk_addresses(global, shared_offset);
    detail::check_bulk_size(FaultKind::kBulkReduction, bytes);
    detail::access_bulk(observer, global, bytes, true);
    detail::report_sources(observer, cta_shared_base, shared_offset, bytes);
    bulk_reduction(op, type)(static_cast<uint8_t*>(global), cta_shared_base + shared_offset, bytes);
    observer.shared(shared_offset, bytes, false);
}

// Prefetches from global memory to L2. The memory must exist.
template <class Observer = NoObserver>
void bulk_prefetch(const void* global, uint32_t bytes, Observer&& observer = Observer{}) {
    detail::check_bulk_addresses(global, 0);
    detail::check_bulk_size(FaultKind::kBulkPrefetch, bytes);
    detail::access_bulk(observer, global, bytes, false);
}

// Checks a copy from one CTA's shared memory to another's.
inline void check_push(uint32_t source, uint32_t target, uint32_t bytes) {
    detail::check_shared_alignment(source, kUnitBytes);
    detail::check_shared_alignment(target, kUnitBytes);
    detail::check_bulk_size(FaultKind::kPush, bytes);
}

}  // namespace tmaasync_emulate
