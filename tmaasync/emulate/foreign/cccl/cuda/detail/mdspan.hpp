// cuda::std::mdspan with its own layouts, because the C++ libraries of most hosts have none yet.
#pragma once

#include <array>
#include <cuda/detail/standard_names.hpp>
#include <span>
#include <tmaasync_emulate/calls.hpp>

namespace cuda::std {

using ::std::array;
using ::std::dynamic_extent;

// --- extents -------------------------------------------------------------------------------------

template <typename Index, ::std::size_t... kExtents>
class extents {
public:
    using index_type = Index;
    using size_type = ::std::make_unsigned_t<Index>;
    using rank_type = ::std::size_t;

    constexpr extents() = default;
    // Takes one value for each dimension, or one for each dimension without a static extent.
    template <typename... Sides>
    requires(
        sizeof...(Sides) > 0 && (::std::is_convertible_v<Sides, Index> && ...) &&
        (sizeof...(Sides) == sizeof...(kExtents) ||
         sizeof...(Sides) == ((kExtents == dynamic_extent) + ... + 0))
    ) constexpr explicit(sizeof...(Sides) != ((kExtents == dynamic_extent) + ... + 0)) extents(Sides... sides) {
        const Index given[] = {static_cast<Index>(sides)...};
        for (rank_type i = 0, next = 0; i < rank(); ++i) {
            if (sizeof...(Sides) == rank()) {
                sides_[i] = given[i];
            } else if (static_extent(i) == dynamic_extent) {
                sides_[i] = given[next++];
            }
        }
    }
    template <::std::size_t kCount>
    constexpr extents(const ::std::array<Index, kCount>& sides) {
        static_assert(kCount == sizeof...(kExtents), "one value for each dimension");
        for (rank_type i = 0; i < rank(); ++i) sides_[i] = sides[i];
    }
    template <typename Other, ::std::size_t... kOthers>
    requires(sizeof...(kOthers) == sizeof...(kExtents)) constexpr extents(
        const extents<Other, kOthers...>& other
    ) {
        for (rank_type i = 0; i < rank(); ++i) sides_[i] = static_cast<Index>(other.extent(i));
    }

    static constexpr rank_type rank() { return sizeof...(kExtents); }
    static constexpr rank_type rank_dynamic() { return ((kExtents == dynamic_extent) + ... + 0); }
    static constexpr ::std::size_t static_extent(rank_type i) {
        constexpr ::std::size_t kAll[] = {kExtents..., 0};
        return kAll[i];
    }
    constexpr Index extent(rank_type i) const { return sides_[i]; }

private:
    Index sides_[sizeof...(kExtents) + 1] = {
        (kExtents == dynamic_extent ? Index{} : static_cast<Index>(kExtents))..., Index{}
    };
};

namespace detail {

template <typename Index, typename Sequence>
struct DynamicExtents;
template <typename Index, ::std::size_t... kIndices>
struct DynamicExtents<Index, ::std::index_sequence<kIndices...>> {
    using Type = extents<Index, (kIndices, dynamic_extent)...>;
};

template <typename>
inline constexpr ::std::size_t kAnyExtent = dynamic_extent;

}  // namespace detail

template <typename Index, ::std::size_t kRank>
using dextents = typename detail::DynamicExtents<Index, ::std::make_index_sequence<kRank>>::Type;
template <::std::size_t kRank, typename Index = ::std::size_t>
using dims = dextents<Index, kRank>;

template <typename... Sides>
extents(Sides...) -> extents<::std::size_t, detail::kAnyExtent<Sides>...>;

// --- layouts -------------------------------------------------------------------------------------

namespace detail {

// The distance in elements between neighbours along each dimension.
template <typename Extents, bool kIsRight>
class PackedMapping {
public:
    using extents_type = Extents;
    using index_type = typename Extents::index_type;

    constexpr PackedMapping() = default;
    constexpr PackedMapping(const Extents& sides) : sides_(sides) {}

    constexpr const Extents& extents() const { return sides_; }
    constexpr index_type stride(::std::size_t dimension) const {
        index_type total = 1;
        if (kIsRight) {
            for (::std::size_t i = dimension + 1; i < Extents::rank(); ++i) {
                total *= sides_.extent(i);
            }
        } else {
            for (::std::size_t i = 0; i < dimension; ++i) total *= sides_.extent(i);
        }
        return total;
    }
    template <typename... At>
    constexpr index_type operator()(At... at) const {
        ::std::size_t i = 0;
        return (
            index_type{} + ... + static_cast<index_type>(static_cast<index_type>(at) * stride(i++))
        );
    }
    constexpr index_type required_span_size() const {
        index_type total = 1;
        for (::std::size_t i = 0; i < Extents::rank(); ++i) total *= sides_.extent(i);
        return total;
    }
    static constexpr bool is_exhaustive() { return true; }

private:
    Extents sides_;
};

}  // namespace detail

struct layout_right {
    template <typename Extents>
    using mapping = detail::PackedMapping<Extents, true>;
};
struct layout_left {
    template <typename Extents>
    using mapping = detail::PackedMapping<Extents, false>;
};
struct layout_stride {
    template <typename Extents>
    class mapping {
    public:
        using extents_type = Extents;
        using index_type = typename Extents::index_type;

        constexpr mapping() = default;
        template <typename Stride>
        constexpr mapping(
            const Extents& sides, const ::std::array<Stride, Extents::rank()>& strides
        )
            : sides_(sides) {
            for (::std::size_t i = 0; i < Extents::rank(); ++i) {
                strides_[i] = static_cast<index_type>(strides[i]);
            }
        }

        constexpr const Extents& extents() const { return sides_; }
        constexpr index_type stride(::std::size_t dimension) const { return strides_[dimension]; }
        template <typename... At>
        constexpr index_type operator()(At... at) const {
            ::std::size_t i = 0;
            return (
                index_type{} + ... +
                static_cast<index_type>(static_cast<index_type>(at) * strides_[i++])
            );
        }

    private:
        Extents sides_;
        index_type strides_[Extents::rank() + 1] = {};
    };
};

// --- mdspan --------------------------------------------------------------------------------------

template <typename T>
struct default_accessor {
    using element_type = T;
    using data_handle_type = T*;
    using reference = T&;
};

template <
    typename T,
    typename Extents,
    typename Layout = layout_right,
    typename Accessor = default_accessor<T>>
class mdspan {
    static_assert(
        ::std::is_same_v<Accessor, default_accessor<T>>,
        "mdspan: accessors other than default_accessor do not run on the CPU"
    );

public:
    using element_type = T;
    using value_type = ::std::remove_cv_t<T>;
    using extents_type = Extents;
    using layout_type = Layout;
    using mapping_type = typename Layout::template mapping<Extents>;
    using index_type = typename Extents::index_type;
    using size_type = typename Extents::size_type;
    using rank_type = typename Extents::rank_type;
    using data_handle_type = T*;
    using reference = T&;

    constexpr mdspan() = default;
    template <typename... Sides>
    requires(
        ::std::is_constructible_v<Extents, Sides...>&& ::std::
            is_constructible_v<mapping_type, Extents>
    ) constexpr explicit mdspan(T* data, Sides... sides)
        : data_(data), mapping_(Extents(static_cast<index_type>(sides)...)) {}
    constexpr mdspan(T* data, const Extents& sides) : data_(data), mapping_(sides) {}
    constexpr mdspan(T* data, const mapping_type& mapping) : data_(data), mapping_(mapping) {}
    template <typename Other>
    requires(::std::is_convertible_v<Other*, T*>) constexpr mdspan(
        const mdspan<Other, Extents, Layout>& other
    )
        : data_(other.data_handle()), mapping_(other.mapping()) {}

    template <typename... At>
    requires(sizeof...(At) == Extents::rank()) TMAASYNC_EMULATE_INLINE
        constexpr T& operator()(At... at) const {
        return data_[mapping_(at...)];
    }
    template <typename At>
    TMAASYNC_EMULATE_INLINE constexpr T& operator[](
        const ::std::array<At, Extents::rank()>& at
    ) const {
        return ::std::apply([&](auto... each) -> T& { return (*this)(each...); }, at);
    }
    template <typename At>
    requires(
        Extents::rank() == 1 && ::std::is_convertible_v<At, index_type>
    ) TMAASYNC_EMULATE_INLINE constexpr T& operator[](At at) const {
        return (*this)(at);
    }

    static constexpr rank_type rank() { return Extents::rank(); }
    static constexpr rank_type rank_dynamic() { return Extents::rank_dynamic(); }
    static constexpr ::std::size_t static_extent(rank_type i) { return Extents::static_extent(i); }
    constexpr index_type extent(rank_type i) const { return mapping_.extents().extent(i); }
    constexpr const Extents& extents() const { return mapping_.extents(); }
    constexpr index_type stride(rank_type i) const { return mapping_.stride(i); }
    constexpr size_type size() const {
        size_type total = 1;
        for (rank_type i = 0; i < rank(); ++i) total *= static_cast<size_type>(extent(i));
        return total;
    }
    constexpr bool empty() const { return size() == 0; }
    constexpr T* data_handle() const { return data_; }
    constexpr const mapping_type& mapping() const { return mapping_; }

private:
    T* data_ = nullptr;
    mapping_type mapping_;
};

template <typename T, typename... Sides>
requires((::std::is_convertible_v<Sides, ::std::size_t> && ...) && sizeof...(Sides) > 0) mdspan(
    T*, Sides...
) -> mdspan<T, dextents<::std::size_t, sizeof...(Sides)>>;
template <typename T, typename Index, ::std::size_t... kExtents>
mdspan(T*, const extents<Index, kExtents...>&) -> mdspan<T, extents<Index, kExtents...>>;

}  // namespace cuda::std
