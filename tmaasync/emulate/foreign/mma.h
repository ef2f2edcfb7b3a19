// Warp matrix functions: CUDA C++ Programming Guide, "Warp Matrix Functions". The guide does not
// specify which element a lane holds. Here an accumulator of 16x8 elements has the layout of
// mma.sync.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <tmaasync_emulate/calls.hpp>
#include <type_traits>

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
namespace precision {
class tf32;
}  // namespace precision

// Declared, because libraries name them beside the types that the emulator has. Loads and matmuls
// of their fragments are refused.
namespace experimental {
namespace precision {
struct u4;
struct s4;
struct b1;
}  // namespace precision
enum bmmaBitOp { bmmaBitOpXOR = 1, bmmaBitOpAND = 2 };
enum bmmaAccumulateOp { bmmaAccumulateOpPOPC = 1 };
}  // namespace experimental

enum layout_t { mem_row_major, mem_col_major };

namespace detail {

template <typename T>
struct Held {
    using Type = T;
};
template <>
struct Held<precision::tf32> {
    using Type = float;
};

template <typename... Ts>
struct Types {};
template <typename T, typename... Ts>
constexpr bool is_one_of(Types<Ts...>) {
    return (std::is_same_v<T, Ts> || ...);
}

template <int m, int n, int k>
constexpr bool is_sub_byte = m == 8 && n == 8 && (k == 32 || k == 128);

template <typename Use, int m, int n, int k, typename T>
constexpr bool is_supported() {
    const bool is_of_16 = (m == 16 && n == 16 && k == 16) || (m == 32 && n == 8 && k == 16) ||
                          (m == 8 && n == 32 && k == 16);
    const bool is_tf32 = m == 16 && n == 16 && k == 8, is_double = m == 8 && n == 8 && k == 4;
    if constexpr (std::is_same_v<Use, accumulator>) {
        return (is_of_16 && is_one_of<T>(Types<__half, float, int>())) ||
               (is_sub_byte<m, n, k> && std::is_same_v<T, int>) ||
               (is_tf32 && std::is_same_v<T, float>) || (is_double && std::is_same_v<T, double>);
    } else {
        using Bytes = Types<__half, __nv_bfloat16, signed char, unsigned char>;
        return (is_of_16 && is_one_of<T>(Bytes())) ||
               (is_tf32 && std::is_same_v<T, precision::tf32>) ||
               (is_double && std::is_same_v<T, double>);
    }
}

struct Element {
    int row;
    int column;
};

// Distribution of a kRows x kColumns matrix over the lanes of a warp, kCount elements per lane.
template <int kRows, int kColumns>
struct Factor {
    static constexpr int kCount = kRows * kColumns / 32;

    static constexpr Element at(int lane, int i) {
        const int index = (i % kCount) * 32 + lane;
        return {index / kColumns, index % kColumns};
    }
    static constexpr int lane_of(int row, int column) { return (row * kColumns + column) % 32; }
    static constexpr int index_of(int row, int column) { return (row * kColumns + column) / 32; }
};

// Blocks of 16 x 8 as in mma.m16n8. A matrix of 8 rows is the same with rows and columns exchanged,
// or as in mma.m8n8k4.
template <int kRows, int kColumns>
struct Sums {
    static constexpr int kCount = kRows * kColumns / 32;

    static constexpr Element at(int lane, int i) {
        if (kRows == 8 && kColumns != 8) {
            const Element other = in_blocks(kColumns, lane, i);
            return {other.column, other.row};
        }
        return in_blocks(kRows, lane, i);
    }

private:
    static constexpr Element in_blocks(int rows, int lane, int i) {
        const int down = rows < 16 ? 1 : rows / 16, block = i / 4;
        return {
            lane / 4 + i / 2 % 2 * 8 + block % down * 16, lane % 4 * 2 + i % 2 + block / down * 8
        };
    }
};

template <typename T>
auto number(T value) {
    if constexpr (std::is_same_v<T, __half>) {
        return __half2float(value);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        return __bfloat162float(value);
    } else {
        return value;
    }
}

TMAASYNC_EMULATE_INLINE int lane() {
    return static_cast<int>(tmaasync_emulate::current_thread().lane);
}

// Lets all lanes of the warp execute the same function. It orders no accesses.
TMAASYNC_EMULATE_INLINE void meet() {
    (void)tmaasync_emulate::ballot(0xffffffffu, true);
}

template <typename T>
TMAASYNC_EMULATE_INLINE void check_stride(unsigned stride) {
    if (stride * sizeof(T) % 16 != 0) {
        tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kWmmaPitch);
    }
}

}  // namespace detail

template <typename Use, int m, int n, int k, typename T, typename Layout = void>
class fragment {
    static_assert(
        detail::is_supported<Use, m, n, k, T>(),
        "on the emulator wmma has the shapes 16x16x16, 32x8x16 and 8x32x16 of __half, "
        "__nv_bfloat16, signed and unsigned char, 16x16x8 of tf32, and 8x8x4 of double"
    );
    static constexpr bool is_a = std::is_same_v<Use, matrix_a>;
    static constexpr bool is_sum = std::is_same_v<Use, accumulator>;

public:
    using element_type = T;
    using storage_element_type = typename detail::Held<T>::Type;
    using Place = std::conditional_t<
        is_sum,
        detail::Sums<m, n>,
        std::conditional_t<is_a, detail::Factor<m, k>, detail::Factor<k, n>>>;

    // Each element of a half fragment is there twice, or more often, as on the chip.
    static constexpr int num_elements = std::is_same_v<T, __half> && !is_sum ? 16 : Place::kCount;
    static constexpr int num_storage_elements = num_elements;

    storage_element_type x[num_elements];
};

namespace detail {
template <typename T, typename Storage, int kElements>
struct SubByteFragment {
    using element_type = T;
    using storage_element_type = Storage;
    static constexpr int num_elements = kElements, num_storage_elements = 1;
    Storage x[1];
};
}  // namespace detail

#define TMAASYNC_EMULATE_SUB_BYTE(TYPE, STORAGE, ELEMENTS)                                     \
    template <>                                                                                \
    class fragment<matrix_a, 8, 8, 4 * ELEMENTS, experimental::precision::TYPE, row_major>     \
        : public detail::SubByteFragment<experimental::precision::TYPE, STORAGE, ELEMENTS> {}; \
    template <>                                                                                \
    class fragment<matrix_b, 8, 8, 4 * ELEMENTS, experimental::precision::TYPE, col_major>     \
        : public detail::SubByteFragment<experimental::precision::TYPE, STORAGE, ELEMENTS> {};
TMAASYNC_EMULATE_SUB_BYTE(u4, unsigned, 8)
TMAASYNC_EMULATE_SUB_BYTE(s4, int, 8)
TMAASYNC_EMULATE_SUB_BYTE(b1, unsigned, 32)
#undef TMAASYNC_EMULATE_SUB_BYTE

template <typename Use, int m, int n, int k, typename T, typename Layout, typename Value>
TMAASYNC_EMULATE_INLINE void fill_fragment(fragment<Use, m, n, k, T, Layout>& a, const Value& v) {
    using Fragment = fragment<Use, m, n, k, T, Layout>;
    using Held = typename Fragment::storage_element_type;
    if constexpr (detail::is_sub_byte<m, n, k> && !std::is_same_v<Use, accumulator>) {
        constexpr unsigned mask = (1u << 32 / Fragment::num_elements) - 1;
        a.x[0] = Held((unsigned(v) & mask) * (~0u / mask));  // the low bits in every element
    } else {
        for (auto& element : a.x) element = Held(v);
    }
}

namespace detail {

template <typename Fragment, typename T>
TMAASYNC_EMULATE_INLINE void load(Fragment& a, const T* from, unsigned stride, bool is_row_major) {
    check_stride<T>(stride);
    meet();
    for (int i = 0; i < Fragment::num_elements; ++i) {
        const Element at = Fragment::Place::at(lane(), i);
        const auto major = static_cast<std::size_t>(is_row_major ? at.row : at.column);
        const auto minor = static_cast<std::size_t>(is_row_major ? at.column : at.row);
        a.x[i] = from[major * stride + minor];
    }
}

}  // namespace detail

template <typename Use, int m, int n, int k, typename T, typename Layout>
requires(!detail::is_sub_byte<m, n, k>) TMAASYNC_EMULATE_INLINE void load_matrix_sync(
    fragment<Use, m, n, k, T, Layout>& a,
    const typename fragment<Use, m, n, k, T, Layout>::storage_element_type* from,
    unsigned stride
) {
    static_assert(
        !std::is_void_v<Layout>, "accumulators are loaded with mem_row_major or the like"
    );
    detail::load(a, from, stride, std::is_same_v<Layout, row_major>);
}
template <int m, int n, int k, typename T>
TMAASYNC_EMULATE_INLINE void load_matrix_sync(
    fragment<accumulator, m, n, k, T>& a, const T* from, unsigned stride, layout_t layout
) {
    detail::load(a, from, stride, layout == mem_row_major);
}

template <int m, int n, int k, typename T>
TMAASYNC_EMULATE_INLINE void store_matrix_sync(
    T* to, const fragment<accumulator, m, n, k, T>& a, unsigned stride, layout_t layout
) {
    detail::check_stride<T>(stride);
    detail::meet();
    const bool is_row_major = layout == mem_row_major;
    for (int i = 0; i < a.num_elements; ++i) {
        const auto at = detail::Sums<m, n>::at(detail::lane(), i);
        const auto major = static_cast<std::size_t>(is_row_major ? at.row : at.column);
        const auto minor = static_cast<std::size_t>(is_row_major ? at.column : at.row);
        to[major * stride + minor] = a.x[i];
    }
}

// Rounds to the nearest, ties away from zero: PTX ISA, cvt.rna.tf32.f32.
TMAASYNC_EMULATE_INLINE float __float_to_tf32(float value) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~0x1fffu;
    __builtin_memcpy(&value, &bits, sizeof(bits));
    return value;
}

namespace detail {

// The words of a fragment without its duplicates, for other lanes.
template <typename Fragment>
constexpr int kWords = (Fragment::Place::kCount * int{sizeof(Fragment::x[0])} + 3) / 4;

template <typename Fragment>
TMAASYNC_EMULATE_INLINE auto element(const std::uint32_t* words, int row, int column) {
    using Held = typename Fragment::storage_element_type;
    Held value;
    const int index = Fragment::Place::index_of(row, column);
    __builtin_memcpy(
        &value, reinterpret_cast<const char*>(words) + sizeof(Held) * index, sizeof(Held)
    );
    if constexpr (std::is_same_v<typename Fragment::element_type, precision::tf32>) {
        std::uint32_t bits;
        __builtin_memcpy(&bits, &value, sizeof(bits));
        bits &= ~0x1fffu;  // the chip ignores these bits of a float
        __builtin_memcpy(&value, &bits, sizeof(bits));
    }
    return number(value);
}

template <typename Sum, typename X>
TMAASYNC_EMULATE_INLINE void add_product(Sum& sum, X x, X y) {
    if constexpr (std::is_same_v<Sum, double>) {
        sum = __builtin_fma(x, y, sum);
    } else {
        sum += Sum(x) * Sum(y);
    }
}

template <typename T, typename Sum>
TMAASYNC_EMULATE_INLINE T result_of(Sum sum, bool saturates) {
    if constexpr (std::is_same_v<T, int>) {
        using Limits = std::numeric_limits<int>;
        if (saturates && sum < Limits::min()) return Limits::min();
        if (saturates && sum > Limits::max()) return Limits::max();
        return static_cast<int>(static_cast<std::uint32_t>(sum));
    } else if constexpr (std::is_same_v<T, __half>) {
        return __float2half_rn(sum);
    } else {
        return sum;
    }
}

template <typename T>
using SumOf = std::conditional_t<
    std::is_same_v<T, double>,
    double,
    std::conditional_t<std::is_same_v<T, int>, long long, float>>;

}  // namespace detail

// Adds up in the order of k.
template <
    int m,
    int n,
    int k,
    typename A,
    typename B,
    typename LayoutA,
    typename LayoutB,
    typename C,
    typename D>
TMAASYNC_EMULATE_INLINE void mma_sync(
    fragment<accumulator, m, n, k, D>& d,
    const fragment<matrix_a, m, n, k, A, LayoutA>& a,
    const fragment<matrix_b, m, n, k, B, LayoutB>& b,
    const fragment<accumulator, m, n, k, C>& c,
    bool saturates = false
) {
    using FragmentA = fragment<matrix_a, m, n, k, A, LayoutA>;
    using FragmentB = fragment<matrix_b, m, n, k, B, LayoutB>;
    static_assert(std::is_same_v<A, B>, "both factors of wmma have one type");
    constexpr int kA = detail::kWords<FragmentA>, kB = detail::kWords<FragmentB>;
    std::uint32_t own[kA + kB], all[32][kA + kB];
    __builtin_memcpy(own, a.x, sizeof(a.x[0]) * FragmentA::Place::kCount);
    __builtin_memcpy(own + kA, b.x, sizeof(b.x[0]) * FragmentB::Place::kCount);
    tmaasync_emulate::gather_words("wmma::mma_sync", own, kA + kB, &all[0][0]);
    for (int i = 0; i < d.num_elements; ++i) {
        const auto at = detail::Sums<m, n>::at(detail::lane(), i);
        auto sum = detail::SumOf<D>(detail::number(c.x[i]));
        for (int j = 0; j < k; ++j) {
            const int from_a = FragmentA::Place::lane_of(at.row, j);
            const int from_b = FragmentB::Place::lane_of(j, at.column);
            detail::add_product(
                sum, detail::element<FragmentA>(all[from_a], at.row, j),
                detail::element<FragmentB>(all[from_b] + kA, j, at.column)
            );
        }
        d.x[i] = detail::result_of<D>(sum, saturates);
    }
}

// --- 1 and 4 bits: declared, and refused where a kernel calls them -------------------------------

#define TMAASYNC_EMULATE_NO_SUB_BYTE                                                             \
    [[gnu::error(                                                                                \
        "the CPU back end does not have wmma's matrix instructions of 1 and 4 bits. Use signed " \
        "char, or pass arrays on a GPU"                                                          \
    )]]
template <typename Use, int k, typename T, typename Layout>
requires(detail::is_sub_byte<8, 8, k>) TMAASYNC_EMULATE_NO_SUB_BYTE
    void load_matrix_sync(fragment<Use, 8, 8, k, T, Layout>& a, const void* from, unsigned stride);
template <int k, typename T, typename LayoutA, typename LayoutB>
requires(detail::is_sub_byte<8, 8, k>) TMAASYNC_EMULATE_NO_SUB_BYTE void mma_sync(
    fragment<accumulator, 8, 8, k, int>& d,
    const fragment<matrix_a, 8, 8, k, T, LayoutA>& a,
    const fragment<matrix_b, 8, 8, k, T, LayoutB>& b,
    const fragment<accumulator, 8, 8, k, int>& c,
    bool saturates = false
);
TMAASYNC_EMULATE_NO_SUB_BYTE void bmma_sync(
    fragment<accumulator, 8, 8, 128, int>& d,
    const fragment<matrix_a, 8, 8, 128, experimental::precision::b1, row_major>& a,
    const fragment<matrix_b, 8, 8, 128, experimental::precision::b1, col_major>& b,
    const fragment<accumulator, 8, 8, 128, int>& c,
    experimental::bmmaBitOp = experimental::bmmaBitOpXOR,
    experimental::bmmaAccumulateOp = experimental::bmmaAccumulateOpPOPC
);
#undef TMAASYNC_EMULATE_NO_SUB_BYTE

}  // namespace nvcuda::wmma
