// Instructions of cuda::ptx on the bits of registers, and shuffles.
#pragma once

#include <cuda/detail/ptx_tags.hpp>
#include <tmaasync_emulate/inline_ptx/integers.hpp>
#include <tmaasync_emulate/inline_ptx/threads.hpp>

namespace cuda::detail {

namespace bits = ::tmaasync_emulate::inline_ptx;

template <typename T>
using Whole = bits::Bits<sizeof(T)>;

}  // namespace cuda::detail

namespace cuda::ptx {

using ::std::int32_t;
using ::std::uint32_t;
using ::std::uint64_t;

template <typename T>
TMAASYNC_EMULATE_INLINE T shl(T a, uint32_t b) {
    const auto shifted = detail::bits::left_shift(__builtin_bit_cast(detail::Whole<T>, a), b);
    return __builtin_bit_cast(T, static_cast<detail::Whole<T>>(shifted));
}
// For a signed integer, the sign is shifted in.
template <typename T>
TMAASYNC_EMULATE_INLINE T shr(T a, uint32_t b) {
    if constexpr (::std::is_integral_v<T>) {
        return static_cast<T>(detail::bits::right_shift(a, b));
    } else {
        const auto word = __builtin_bit_cast(detail::Whole<T>, a);
        return __builtin_bit_cast(
            T, static_cast<detail::Whole<T>>(detail::bits::right_shift(word, b))
        );
    }
}

template <typename T>
TMAASYNC_EMULATE_INLINE uint32_t bfind(T a) {
    return detail::bits::highest_bit<false>(a);
}
template <typename T>
TMAASYNC_EMULATE_INLINE uint32_t bfind_shiftamt(T a) {
    return detail::bits::highest_bit<true>(a);
}
TMAASYNC_EMULATE_INLINE uint32_t bmsk_clamp(uint32_t first, uint32_t width) {
    return detail::bits::masked_bits<true>(first, width);
}
TMAASYNC_EMULATE_INLINE uint32_t bmsk_wrap(uint32_t first, uint32_t width) {
    return detail::bits::masked_bits<false>(first, width);
}

#define TMAASYNC_EMULATE_PERMUTE(NAME, MODE)                                            \
    template <typename A, typename B>                                                   \
    TMAASYNC_EMULATE_INLINE uint32_t NAME(A a, B b, uint32_t selector) {                \
        static_assert(sizeof(A) == 4 && sizeof(B) == 4, "prmt takes words of 32 bits"); \
        return detail::bits::permuted<detail::bits::PermuteMode::MODE>(                 \
            __builtin_bit_cast(uint32_t, a), __builtin_bit_cast(uint32_t, b), selector  \
        );                                                                              \
    }
TMAASYNC_EMULATE_PERMUTE(prmt, kNone)
TMAASYNC_EMULATE_PERMUTE(prmt_f4e, kF4E)
TMAASYNC_EMULATE_PERMUTE(prmt_b4e, kB4E)
TMAASYNC_EMULATE_PERMUTE(prmt_rc8, kRc8)
TMAASYNC_EMULATE_PERMUTE(prmt_ecl, kEcl)
TMAASYNC_EMULATE_PERMUTE(prmt_ecr, kEcr)
TMAASYNC_EMULATE_PERMUTE(prmt_rc16, kRc16)
#undef TMAASYNC_EMULATE_PERMUTE

#define TMAASYNC_EMULATE_SHUFFLE(NAME, KIND)                                                    \
    template <typename T>                                                                       \
    TMAASYNC_EMULATE_INLINE T NAME(                                                             \
        T data, bool& is_inside, uint32_t by, uint32_t clamp_and_segments, uint32_t lanes       \
    ) {                                                                                         \
        static_assert(sizeof(T) == 4, "shfl.sync takes words of 32 bits");                      \
        static_assert(                                                                          \
            ::std::is_integral_v<T>,                                                            \
            "libcu++ 13.0 returns the bits of a float as a number: pass __float_as_uint(x), "   \
            "and take __uint_as_float of the result"                                            \
        );                                                                                      \
        return __builtin_bit_cast(                                                              \
            T, detail::bits::shuffled<::tmaasync_emulate::ShuffleKind::KIND>(                   \
                   __builtin_bit_cast(uint32_t, data), by, clamp_and_segments, lanes, is_inside \
               )                                                                                \
        );                                                                                      \
    }                                                                                           \
    template <typename T>                                                                       \
    TMAASYNC_EMULATE_INLINE T NAME(                                                             \
        T data, uint32_t by, uint32_t clamp_and_segments, uint32_t lanes                        \
    ) {                                                                                         \
        bool is_inside;                                                                         \
        return NAME(data, is_inside, by, clamp_and_segments, lanes);                            \
    }
TMAASYNC_EMULATE_SHUFFLE(shfl_sync_idx, kIndex)
TMAASYNC_EMULATE_SHUFFLE(shfl_sync_up, kUp)
TMAASYNC_EMULATE_SHUFFLE(shfl_sync_down, kDown)
TMAASYNC_EMULATE_SHUFFLE(shfl_sync_bfly, kXor)
#undef TMAASYNC_EMULATE_SHUFFLE

}  // namespace cuda::ptx
