// wmma as PTX: the fragments of <mma.h>, whose elements lie in registers in their order. Included
// by PTX modules that have it.
#pragma once

#include <mma.h>

#include <tmaasync_emulate/ptx_module.hpp>

namespace tmaasync_emulate::inline_ptx {

namespace wmma = nvcuda::wmma;

template <typename Fragment, typename Word, std::size_t kCount>
TMAASYNC_EMULATE_INLINE Fragment fragment_of(const Word (&words)[kCount]) {
    Fragment fragment;
    static_assert(
        sizeof(words) == sizeof(fragment.x), "wmma has as many registers as its shape asks for"
    );
    __builtin_memcpy(fragment.x, words, sizeof(words));
    return fragment;
}

template <typename Fragment, typename... Words>
TMAASYNC_EMULATE_INLINE void spread_fragment(const Fragment& fragment, Words&... targets) {
    using Word = std::common_type_t<Words...>;
    static_assert(
        sizeof(Word) * sizeof...(Words) == sizeof(fragment.x),
        "wmma has as many registers as its shape asks for"
    );
    Word words[sizeof...(Words)];
    __builtin_memcpy(words, fragment.x, sizeof(words));
    int i = 0;
    ((targets = words[i++]), ...);
}

// An accumulator has its layout as an argument, the other fragments as their type.
template <typename Fragment, typename... Layout>
TMAASYNC_EMULATE_INLINE Fragment
loaded_fragment(const std::uint8_t* from, std::uint32_t stride, Layout... layout) {
    using Held = typename Fragment::storage_element_type;
    Fragment fragment;
    wmma::load_matrix_sync(fragment, reinterpret_cast<const Held*>(from), stride, layout...);
    return fragment;
}

template <typename Fragment, typename... Words>
TMAASYNC_EMULATE_INLINE void store_fragment(
    std::uint8_t* to, std::uint32_t stride, wmma::layout_t layout, Words... words
) {
    using Held = typename Fragment::storage_element_type;
    const std::common_type_t<Words...> held[] = {words...};
    const auto fragment = fragment_of<Fragment>(held);
    wmma::store_matrix_sync(reinterpret_cast<Held*>(to), fragment, stride, layout);
}

template <typename D, typename A, typename B, typename C, bool kSat, typename Word, auto... kCounts>
TMAASYNC_EMULATE_INLINE D multiplied_fragments(const Word (&... words)[kCounts]) {
    D sums;
    const auto multiply = [&](const auto& a, const auto& b, const auto& c) {
        wmma::mma_sync(sums, fragment_of<A>(a), fragment_of<B>(b), fragment_of<C>(c), kSat);
    };
    multiply(words...);
    return sums;
}

}  // namespace tmaasync_emulate::inline_ptx
