// Loads and stores of cuda::ptx: with cache hints, and into the shared memory of a cluster.
#pragma once

#include <cuda/detail/ptx_mbarrier.hpp>
#include <cuda/detail/ptx_tags.hpp>
#include <cuda/detail/shared_memory.hpp>
#include <tmaasync_emulate/inline_ptx/copies.hpp>

namespace cuda::detail {

template <typename T>
TMAASYNC_EMULATE_INLINE T loaded(const T* pointer) {
    static_assert(sizeof(T) <= 32 && (sizeof(T) & (sizeof(T) - 1)) == 0);
    tmaasync_emulate::inline_ptx::check_aligned(pointer, sizeof(T));
    return *pointer;
}
template <typename T>
TMAASYNC_EMULATE_INLINE void stored(T* pointer, T value) {
    static_assert(sizeof(T) <= 32 && (sizeof(T) & (sizeof(T) - 1)) == 0);
    tmaasync_emulate::inline_ptx::check_aligned(pointer, sizeof(T));
    *pointer = value;
}

template <ptx::dot_op kOp>
constexpr auto atomic_op() {
    using tmaasync_emulate::inline_ptx::AtomicOp;
    return kOp == ptx::dot_op::add      ? AtomicOp::kAdd
           : kOp == ptx::dot_op::min    ? AtomicOp::kMin
           : kOp == ptx::dot_op::max    ? AtomicOp::kMax
           : kOp == ptx::dot_op::inc    ? AtomicOp::kInc
           : kOp == ptx::dot_op::dec    ? AtomicOp::kDec
           : kOp == ptx::dot_op::and_op ? AtomicOp::kAnd
           : kOp == ptx::dot_op::or_op  ? AtomicOp::kOr
                                        : AtomicOp::kXor;
}

}  // namespace cuda::detail

namespace cuda::ptx {

// --- st.async and red.async ----------------------------------------------------------------------

template <typename T>
TMAASYNC_EMULATE_INLINE void st_async(
    T* target, const ::std::type_identity_t<T>& value, detail::BarrierWord barrier
) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "st.async moves words of 4 or 8 bytes");
    using Word = tmaasync_emulate::inline_ptx::Bits<sizeof(T)>;
    tmaasync_emulate::inline_ptx::store_async<Word>(
        detail::shared_address(target), detail::shared_address(barrier),
        __builtin_bit_cast(Word, value)
    );
}
template <typename T, int kCount>
TMAASYNC_EMULATE_INLINE void st_async(
    T* target, const T (&values)[kCount], detail::BarrierWord barrier
) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "st.async moves words of 4 or 8 bytes");
    static_assert(kCount == 2 || kCount == 4, "st.async moves 1, 2 or 4 words");
    using Word = tmaasync_emulate::inline_ptx::Bits<sizeof(T)>;
    const auto remote = detail::shared_address(target);
    const auto at = detail::shared_address(barrier);
    const auto word = [&](int i) { return __builtin_bit_cast(Word, values[i]); };
    if constexpr (kCount == 2) {
        tmaasync_emulate::inline_ptx::store_async<Word>(remote, at, word(0), word(1));
    } else {
        tmaasync_emulate::inline_ptx::store_async<Word>(
            remote, at, word(0), word(1), word(2), word(3)
        );
    }
}

template <dot_op kOp, typename T>
TMAASYNC_EMULATE_INLINE void red_async(
    op_t<kOp>, T* target, const ::std::type_identity_t<T>& value, detail::BarrierWord barrier
) {
    static_assert(sizeof(T) == 4 || kOp == dot_op::add, "of 8 bytes, red.async only adds");
    tmaasync_emulate::inline_ptx::reduce_async<detail::atomic_op<kOp>(), T>(
        detail::shared_address(target), detail::shared_address(barrier), value
    );
}

// --- ld and st with cache hints, which are ignored -----------------------------------------------

#define TMAASYNC_EMULATE_LOAD(NAME)                                    \
    template <typename T>                                              \
    TMAASYNC_EMULATE_INLINE T NAME(space_global_t, const T* pointer) { \
        return detail::loaded(pointer);                                \
    }
#define TMAASYNC_EMULATE_LOAD_HINT(NAME)                                         \
    template <typename T>                                                        \
    TMAASYNC_EMULATE_INLINE T NAME(space_global_t, const T* pointer, uint64_t) { \
        return detail::loaded(pointer);                                          \
    }
#define TMAASYNC_EMULATE_LOADS(NAME)                         \
    TMAASYNC_EMULATE_LOAD(NAME)                              \
    TMAASYNC_EMULATE_LOAD(NAME##_L2_64B)                     \
    TMAASYNC_EMULATE_LOAD(NAME##_L2_128B)                    \
    TMAASYNC_EMULATE_LOAD(NAME##_L2_256B)                    \
    TMAASYNC_EMULATE_LOAD_HINT(NAME##_L2_cache_hint)         \
    TMAASYNC_EMULATE_LOAD_HINT(NAME##_L2_cache_hint_L2_64B)  \
    TMAASYNC_EMULATE_LOAD_HINT(NAME##_L2_cache_hint_L2_128B) \
    TMAASYNC_EMULATE_LOAD_HINT(NAME##_L2_cache_hint_L2_256B)
#define TMAASYNC_EMULATE_STORES(NAME)                                         \
    template <typename T>                                                     \
    TMAASYNC_EMULATE_INLINE void NAME(                                        \
        space_global_t, T* pointer, ::std::type_identity_t<T> value           \
    ) {                                                                       \
        detail::stored(pointer, value);                                       \
    }                                                                         \
    template <typename T>                                                     \
    TMAASYNC_EMULATE_INLINE void NAME##_L2_cache_hint(                        \
        space_global_t, T* pointer, ::std::type_identity_t<T> value, uint64_t \
    ) {                                                                       \
        detail::stored(pointer, value);                                       \
    }
#define TMAASYNC_EMULATE_EVICTIONS(EACH, NAME) \
    EACH(NAME)                                 \
    EACH(NAME##_L1_evict_first)                \
    EACH(NAME##_L1_evict_last)                 \
    EACH(NAME##_L1_evict_normal)               \
    EACH(NAME##_L1_evict_unchanged)            \
    EACH(NAME##_L1_no_allocate)
TMAASYNC_EMULATE_EVICTIONS(TMAASYNC_EMULATE_LOADS, ld)
TMAASYNC_EMULATE_EVICTIONS(TMAASYNC_EMULATE_LOADS, ld_nc)
TMAASYNC_EMULATE_EVICTIONS(TMAASYNC_EMULATE_STORES, st)
#undef TMAASYNC_EMULATE_EVICTIONS
#undef TMAASYNC_EMULATE_STORES
#undef TMAASYNC_EMULATE_LOADS
#undef TMAASYNC_EMULATE_LOAD_HINT
#undef TMAASYNC_EMULATE_LOAD

}  // namespace cuda::ptx
