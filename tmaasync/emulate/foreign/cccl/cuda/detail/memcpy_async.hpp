// cuda::memcpy_async: copies from global to shared memory with cp.async, and elsewhere, or for data
// aligned to fewer than 4 bytes, with ordinary loads and stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda/detail/barrier.hpp>
#include <cuda/detail/shared_memory.hpp>
#include <tmaasync/ptx/cp_async.cuh>
#include <tmaasync/ptx/cp_async_bulk.cuh>
#include <type_traits>

namespace cuda {

// A number of bytes that is a multiple of kAlignment, as are both addresses of the copy.
template <::std::size_t kAlignment>
struct aligned_size_t {
    static constexpr ::std::size_t align = kAlignment;
    ::std::size_t value;

    TMAASYNC_EMULATE_INLINE explicit constexpr aligned_size_t(::std::size_t bytes) : value(bytes) {}
    TMAASYNC_EMULATE_INLINE constexpr operator ::std::size_t() const { return value; }
};

enum class async_contract_fulfillment { none, async };

}  // namespace cuda

namespace cuda::detail {

struct OneThread {
    TMAASYNC_EMULATE_INLINE unsigned size() const { return 1; }
    TMAASYNC_EMULATE_INLINE unsigned thread_rank() const { return 0; }
    TMAASYNC_EMULATE_INLINE void sync() const {}
};

template <typename Size>
constexpr ::std::size_t kAlignmentOf = 1;
template <::std::size_t kAlignment>
constexpr ::std::size_t kAlignmentOf<aligned_size_t<kAlignment>> = kAlignment;

template <::std::size_t kAlignment>
constexpr ::std::size_t kPieceBytes = kAlignment >= 16  ? 16
                                      : kAlignment >= 8 ? 8
                                      : kAlignment >= 4 ? 4
                                                        : kAlignment;

template <::std::size_t kBytes>
struct alignas(kBytes) Piece {
    unsigned char bytes[kBytes];
};

TMAASYNC_EMULATE_INLINE void check_size(::std::size_t bytes, ::std::size_t unit) {
    if (bytes % unit == 0) return;
    tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kMemcpySize);
}

// Copies the thread's share of the group's copy. Returns true if it uses cp.async.
template <::std::size_t kAlignment, typename Group>
TMAASYNC_EMULATE_INLINE bool copy_share(
    const Group& group, void* target, const void* source, ::std::size_t bytes
) {
    constexpr ::std::size_t kBytes = kPieceBytes<kAlignment>;
    check_size(bytes, kBytes);
    const ::std::size_t step = group.size() * kBytes;
    auto* const to = static_cast<unsigned char*>(target);
    const auto* const from = static_cast<const unsigned char*>(source);
    const bool is_async = kBytes >= 4 && is_shared(target) && is_global(source);
    for (::std::size_t at = group.thread_rank() * kBytes; at < bytes; at += step) {
        if (is_async) {
            tmaasync_emulate::thread_copy(shared_address(to + at), from + at, kBytes, kBytes);
        } else {
            *reinterpret_cast<Piece<kBytes>*>(to + at) =
                *reinterpret_cast<const Piece<kBytes>*>(from + at);
        }
    }
    return is_async;
}

template <typename T, typename Size>
constexpr ::std::size_t kCopyAlignment =
    alignof(T) > kAlignmentOf<Size> ? alignof(T) : kAlignmentOf<Size>;
template <typename Size>
constexpr ::std::size_t kCopyAlignment<void, Size> = kAlignmentOf<Size>;

template <thread_scope kScope, typename Completion>
constexpr bool kIsMbarrier =
    kScope == thread_scope_block && ::std::is_same_v<Completion, NoCompletion>;

// A copy whose completion a barrier or pipeline reports.
template <typename T, typename Group, typename Size, thread_scope kScope, typename Completion>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment copy_for(
    const Group& group, T* target, const T* source, Size bytes, barrier<kScope, Completion>& barrier
) {
    constexpr ::std::size_t kAlignment = kCopyAlignment<T, Size>;
    if (!copy_share<kAlignment>(group, target, source, bytes)) {
        return async_contract_fulfillment::none;
    }
    if constexpr (kIsMbarrier<kScope, Completion>) {
        tma::cp_async_mbarrier_arrive(shared_address(&barrier));
        return async_contract_fulfillment::async;
    } else {
        tma::cp_async_wait_all();
        return async_contract_fulfillment::none;
    }
}

}  // namespace cuda::detail

namespace cuda {

template <typename Group, typename T, typename Size, thread_scope kScope, typename Completion>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment memcpy_async(
    const Group& group, T* target, const T* source, Size bytes, barrier<kScope, Completion>& barrier
) {
    return detail::copy_for(group, target, source, bytes, barrier);
}
template <typename Group, typename Size, thread_scope kScope, typename Completion>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment memcpy_async(
    const Group& group,
    void* target,
    const void* source,
    Size bytes,
    barrier<kScope, Completion>& barrier
) {
    return detail::copy_for<void>(group, target, source, bytes, barrier);
}
template <typename T, typename Size, thread_scope kScope, typename Completion>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment
memcpy_async(T* target, const T* source, Size bytes, barrier<kScope, Completion>& barrier) {
    return detail::copy_for(detail::OneThread(), target, source, bytes, barrier);
}
template <typename Size, thread_scope kScope, typename Completion>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment
memcpy_async(void* target, const void* source, Size bytes, barrier<kScope, Completion>& barrier) {
    return detail::copy_for<void>(detail::OneThread(), target, source, bytes, barrier);
}

}  // namespace cuda

namespace cuda::device {

// TMA's copy without a tensor map. Its bytes are credited to the barrier.
template <typename T, ::std::size_t kAlignment>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment memcpy_async_tx(
    T* target,
    const T* source,
    aligned_size_t<kAlignment> bytes,
    barrier<thread_scope_block>& barrier
) {
    static_assert(kAlignment >= 16, "memcpy_async_tx takes an aligned_size_t of 16 or more");
    detail::tma::cp_async_bulk_load(
        detail::shared_address(target), source, static_cast<unsigned>(bytes.value),
        detail::shared_address(&barrier), 0
    );
    return async_contract_fulfillment::async;
}

}  // namespace cuda::device
