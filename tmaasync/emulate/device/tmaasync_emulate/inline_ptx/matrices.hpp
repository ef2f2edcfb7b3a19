// Matrix instructions of inline PTX: ldmatrix, stmatrix, wgmma and mma.sync.
#pragma once

#include <tmaasync/ptx/wgmma_mma.cuh>
#include <tmaasync_emulate/inline_ptx/convert.hpp>

namespace tmaasync_emulate::inline_ptx {

template <bool kIsTransposed, int kMatrices, typename... Words>
TMAASYNC_EMULATE_INLINE void load_matrices(std::uint32_t row, Words&... targets) {
    static_assert(sizeof...(Words) == kMatrices, "ldmatrix has a register for each matrix");
    std::uint32_t values[sizeof...(Words)];
    load_matrix(row, sizeof...(Words), kIsTransposed, values);
    int i = 0;
    ((targets = values[i++]), ...);
}
template <bool kIsTransposed, int kMatrices, typename... Words>
TMAASYNC_EMULATE_INLINE void store_matrices(std::uint32_t row, Words... words) {
    static_assert(sizeof...(Words) == kMatrices, "stmatrix has a register for each matrix");
    const std::uint32_t values[] = {words...};
    store_matrix(row, sizeof...(Words), kIsTransposed, values);
}

template <ByteMatrix kForm, int kMatrices, typename... Words>
TMAASYNC_EMULATE_INLINE void load_byte_matrices(std::uint32_t row, Words&... targets) {
    constexpr bool kIsTransposed =
        kForm == ByteMatrix::kTransposed || kForm >= ByteMatrix::kTransposedFrom4Bits;
    static_assert(
        sizeof...(Words) == kMatrices * (kIsTransposed ? 2 : 1),
        "ldmatrix has two registers for each matrix of 16 rows, and one for each of 8"
    );
    std::uint32_t values[sizeof...(Words)];
    load_byte_matrix(row, kMatrices, kForm, values);
    int i = 0;
    ((targets = values[i++]), ...);
}
template <int kMatrices, typename... Words>
TMAASYNC_EMULATE_INLINE void store_byte_matrices(std::uint32_t row, Words... words) {
    static_assert(sizeof...(Words) == kMatrices, "stmatrix has a register for each matrix");
    const std::uint32_t values[] = {words...};
    store_byte_matrix(row, kMatrices, values);
}

// Transposes an 8 x 8 matrix: each lane gives two elements of its row, and gets the same two of the
// transposed matrix.
TMAASYNC_EMULATE_INLINE std::uint32_t transposed_matrix(std::uint32_t row) {
    std::uint32_t all[32];
    gather_words("movmatrix", &row, 1, all);
    const std::uint32_t lane = current_thread().lane;
    const auto element = [&](std::uint32_t y) {
        return all[y * 4 + lane / 8] >> (lane / 4 % 2 * 16) & 0xffff;
    };
    return element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
}

// --- wgmma ---------------------------------------------------------------------------------------

// The accumulators stay with the thread, and change when the thread waits for them.
template <typename Register, int kRegisters, typename... Held>
TMAASYNC_EMULATE_INLINE auto& in_one_array(Held&... held) {
    static_assert(
        sizeof...(Held) == kRegisters, "wgmma has as many accumulators as its shape asks for"
    );
    const void* const places[] = {&held...};
    static_assert(((sizeof(Held) == 4) && ...), "an accumulator has 32 bits");
    for (std::size_t i = 1; i < sizeof...(Held); ++i) {
        if (static_cast<const char*>(places[i]) != static_cast<const char*>(places[0]) + 4 * i) {
            fail(FaultKind::kScatteredAccumulators);
        }
    }
    return *reinterpret_cast<Register(*)[sizeof...(Held)]>(const_cast<void*>(places[0]));
}

// With A in registers: the detector watches the registers of an array until the wgmma has read
// them.
template <
    tmaasync::ptx::MmaType kA,
    tmaasync::ptx::MmaType kB,
    int kTransposeB,
    int kScaleA,
    int kScaleB,
    typename Register,
    int kRegisters,
    typename... Held>
TMAASYNC_EMULATE_INLINE void multiply_registers(
    Register (&d)[kRegisters], std::uint64_t b, bool accumulates, const Held&... a
) {
    using namespace tmaasync::ptx;
    static_assert(sizeof...(Held) == 4, "A of wgmma is in four registers");
    (void)MmaForm<Register, kA, kB, 0, kTransposeB, kScaleA, kScaleB>{};
    auto mma = EmulatedMma<kA, kB, kTransposeB, kScaleA, kScaleB>::make(d, b, accumulates);
    mma.a_in_registers = true;
    const void* const places[] = {&a...};
    int i = 0;
    bool is_array = true;
    (
        [&] {
            is_array = is_array && places[i] == static_cast<const char*>(places[0]) + 4 * i;
            mma.a_registers[i++] = operand<'r'>(a);
        }(),
        ...);
    mma.a_held = is_array ? places[0] : nullptr;
    mma_issue(mma);
}

// --- mma.sync ------------------------------------------------------------------------------------

using tmaasync::ptx::MmaType;

template <typename T, int kCount, typename... Words>
TMAASYNC_EMULATE_INLINE void spread(const T (&values)[kCount], Words&... targets) {
    static_assert(
        sizeof...(Words) == kCount, "mma.sync has as many registers as its shape asks for"
    );
    int i = 0;
    (set<T>(targets, values[i++]), ...);
}

// f64: a lane holds one element of each part of four columns of A, and of each part of four rows of
// B.
template <int kSums, int kA, int kB>
TMAASYNC_EMULATE_INLINE void multiply_doubles(
    double (&sums)[kSums], const double (&a)[kA], const double (&b)[kB]
) {
    constexpr int kHalves = kSums / 2;  // halves of eight rows
    double mine[kA + kB], all[32][kA + kB];
    for (int i = 0; i < kA; ++i) mine[i] = a[i];
    for (int i = 0; i < kB; ++i) mine[kA + i] = b[i];
    gather_words(
        "mma.sync", reinterpret_cast<const std::uint32_t*>(mine), 2 * (kA + kB),
        reinterpret_cast<std::uint32_t*>(all)
    );
    const int row = static_cast<int>(current_thread().lane) / 4;
    const int column = static_cast<int>(current_thread().lane) % 4 * 2;
    for (int i = 0; i < kSums; ++i) {
        for (int k = 0; k < 4 * kB; ++k) {
            const double x = all[row * 4 + k % 4][k / 4 * kHalves + i / 2];
            const double y = all[(column + i % 2) * 4 + k % 4][kA + k / 4];
            sums[i] = std::fma(x, y, sums[i]);
        }
    }
}

// --- mma.sync with a kind ------------------------------------------------------------------------

// Codes of the types in tcgen05's instruction descriptor.
struct SmallFloatCode {
    static constexpr std::uint32_t e4m3 = 0, e5m2 = 1, e2m3 = 3, e3m2 = 4, e2m1 = 5;
};

constexpr std::uint32_t kind_types(std::uint32_t a, std::uint32_t b, std::uint32_t others) {
    return a << 7 | b << 10 | others;
}

// The words of scale factors, and byte and thread of each.
struct ScaleOperands {
    std::uint32_t words[2];
    std::uint16_t ids[4];
};

inline ScaleOperands scale_operands(
    std::uint32_t a,
    std::uint32_t b,
    std::uint16_t a_byte,
    std::uint16_t a_thread,
    std::uint16_t b_byte,
    std::uint16_t b_thread
) {
    return {{a, b}, {a_byte, a_thread, b_byte, b_thread}};
}

template <int kSelector>
std::uint32_t sparse_metadata(std::uint32_t word) {
    static_assert(
        kSelector == 0, "the sparsity selector of mma with a kind is 0: all lanes have metadata"
    );
    return word;
}

// Sparse A leaves out half of K, of which B has twice as much.
template <Tcgen05Kind kKind, int kScaleVector, int kSums, int kB>
TMAASYNC_EMULATE_INLINE void multiply_kind(
    std::uint32_t instruction,
    std::uint32_t (&d)[kSums],
    const std::uint32_t (&a)[4],
    const std::uint32_t (&b)[kB],
    const std::uint32_t (&c)[kSums],
    const ScaleOperands& scales = {},
    std::uint32_t metadata = 0
) {
    static_assert(kB == 2 || kB == 4, "B has two registers, with sparse A four");
    constexpr std::uint32_t kSparse = kB == 4 ? 1 << 2 : 0;
    WarpMma mma{
        .kind = kKind,
        .instruction = instruction | kSparse,
        .scale_vector = kScaleVector,
        .a = {a[0], a[1], a[2], a[3]},
        .b = {b[0], b[1], b[kB - 2], b[kB - 1]},
        .metadata = metadata,
        .sums = {},
        .a_scales = scales.words[0],
        .b_scales = scales.words[1],
        .a_byte = scales.ids[0],
        .a_thread = scales.ids[1],
        .b_byte = scales.ids[2],
        .b_thread = scales.ids[3],
    };
    for (int i = 0; i < kSums; ++i) mma.sums[i] = c[i];
    multiply_with_warp(mma);
    for (int i = 0; i < kSums; ++i) d[i] = mma.sums[i];
}

// --- mma.sync without a kind ---------------------------------------------------------------------

template <MmaType kType>
constexpr int kPerWord = 4 / tmaasync::ptx::element_bytes(kType);

template <MmaType kType>
constexpr Tcgen05Kind kKindOf = tmaasync::ptx::is_float8(kType)    ? Tcgen05Kind::kF8F6F4
                                : tmaasync::ptx::is_integer(kType) ? Tcgen05Kind::kI8
                                : kType == MmaType::kTF32          ? Tcgen05Kind::kTF32
                                                                   : Tcgen05Kind::kF16;

// The codes of a type and of the accumulators in tcgen05's instruction descriptor.
constexpr std::uint32_t type_code(MmaType type) {
    using enum MmaType;
    return type == kTF32 ? 2 : type == kBF16 || type == kE5M2 || type == kS8;
}
constexpr std::uint32_t sum_code(MmaSum sum) {
    return sum == MmaSum::kHalf ? 0 : sum == MmaSum::kFloat ? 1 : 2;
}

// m16n8kK, in the bits of Hopper (benchmarks/probe_tensor_core_bits.py). A form of half of K is the
// whole one whose other registers are 0.
template <MmaType kA, MmaType kB, MmaSum kSum, bool kSaturates = false, int kSums, int kWords>
TMAASYNC_EMULATE_INLINE void multiply_dense(
    std::uint32_t (&d)[kSums],
    const std::uint32_t (&a)[2 * kWords],
    const std::uint32_t (&b)[kWords],
    const std::uint32_t (&c)[kSums]
) {
    constexpr auto kInstruction =
        kind_types(type_code(kA), type_code(kB), sum_code(kSum) << 4 | kSaturates << 3);
    std::uint32_t left[4] = {}, right[2] = {};
    for (int i = 0; i < 2 * kWords; ++i) left[i] = a[i];
    for (int i = 0; i < kWords; ++i) right[i] = b[i];
    multiply_kind<kKindOf<kA>, 0>(kInstruction, d, left, right, c);
}

// The two elements of FP8 in the lower half of a register as f16, which has E4M3's subnormal
// numbers as normal ones.
template <MmaType kType>
std::uint32_t as_halves(std::uint32_t both) {
    using Narrow = std::conditional_t<kType == MmaType::kE4M3, E4M3Bits, E5M2Bits>;
    return std::bit_cast<std::uint32_t>(unpacked_halves<Narrow, false>(both));
}

// Hopper has no mma.sync of FP8: ptxas 13.0 writes two of fp16, the second for the upper halves of
// the registers, and adds C to their sum.
template <MmaType kA, MmaType kB, MmaSum kSum, int kSums, int kWords>
TMAASYNC_EMULATE_INLINE void multiply_float8(
    std::uint32_t (&sums)[kSums],
    const std::uint32_t (&a)[2 * kWords],
    const std::uint32_t (&b)[kWords]
) {
    for (const int shift : {0, 16}) {
        std::uint32_t left[2 * kWords], right[kWords];
        for (int i = 0; i < 2 * kWords; ++i) left[i] = as_halves<kA>(a[i] >> shift);
        for (int i = 0; i < kWords; ++i) right[i] = as_halves<kB>(b[i] >> shift);
        multiply_dense<MmaType::kF16, MmaType::kF16, kSum>(sums, left, right, sums);
    }
}

template <MmaType kA, MmaType kB, int kDepth, typename Sum, bool kSaturates = false>
TMAASYNC_EMULATE_INLINE void multiply(
    std::uint32_t (&d)[4],
    const std::uint32_t (&a)[kDepth / kPerWord<kA> / 2],
    const std::uint32_t (&b)[kDepth / kPerWord<kA> / 4],
    const std::uint32_t (&c)[4]
) {
    if constexpr (!tmaasync::ptx::is_float8(kA)) {
        constexpr auto kSum = std::is_same_v<Sum, float> ? MmaSum::kFloat : MmaSum::kInt;
        multiply_dense<kA, kB, kSum, kSaturates>(d, a, b, c);
    } else {
        std::uint32_t sums[4] = {};
        multiply_float8<kA, kB, MmaSum::kFloat>(sums, a, b);
        for (int i = 0; i < 4; ++i) {
            const float sum = std::bit_cast<float>(c[i]) + std::bit_cast<float>(sums[i]);
            d[i] = sum != sum ? 0x7fffffff : std::bit_cast<std::uint32_t>(sum);
        }
    }
}

// Two accumulators of 16 bits share a register.
template <MmaType kA, MmaType kB, int kDepth>
TMAASYNC_EMULATE_INLINE void multiply_to_halves(
    std::uint32_t (&d)[2],
    const std::uint32_t (&a)[kDepth / kPerWord<kA> / 2],
    const std::uint32_t (&b)[kDepth / kPerWord<kA> / 4],
    const std::uint32_t (&c)[2]
) {
    if constexpr (!tmaasync::ptx::is_float8(kA)) {
        multiply_dense<kA, kB, MmaSum::kHalf>(d, a, b, c);
    } else {
        std::uint32_t sums[2] = {};
        multiply_float8<kA, kB, MmaSum::kHalf>(sums, a, b);
        for (int i = 0; i < 2; ++i) {
            const auto sum = [&](int shift) {
                return HalfBits::to(c[i] >> shift & 0xffff) +
                       HalfBits::to(sums[i] >> shift & 0xffff);
            };
            d[i] = packed<HalfBits, Round::kRn, false, false>(sum(16), sum(0));
        }
    }
}

// m8n8k4 of fp16: four matrices of 8 x 8, one for the lanes 4 q to 4 q + 3 and 16 above.
template <bool kAIsColumn, bool kBIsRow>
TMAASYNC_EMULATE_INLINE void multiply_in_quad_pairs(
    float (&sums)[8],
    int (&rows)[8],
    int (&columns)[8],
    const std::uint32_t (&a)[2],
    const std::uint32_t (&b)[2]
) {
    const std::uint32_t mine[4] = {a[0], a[1], b[0], b[1]};
    std::uint32_t all[32][4];
    gather_words("mma.sync", mine, 4, &all[0][0]);
    const int quad = static_cast<int>(current_thread().lane) % 16 / 4 * 4;
    // The element of four that the lane holds: its lane is `at` of the side that lanes follow.
    const auto element = [&](bool follows_k, int side, int k, int first) {
        const int at = follows_k ? k : side % 4, i = follows_k ? side % 4 : k;
        const std::uint32_t* const words = all[quad + at + side / 4 * 16] + first;
        return HalfBits::to(words[i / 2] >> 16 * (i % 2) & 0xffff);
    };
    for (int i = 0; i < 8; ++i) {
        for (int k = 0; k < 4; ++k) {
            sums[i] += element(kAIsColumn, rows[i], k, 0) * element(kBIsRow, columns[i], k, 2);
        }
    }
}

// PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16": accumulators of f32, and of f16 in rows.
template <bool kAIsColumn, bool kBIsRow, bool kHasHalves>
TMAASYNC_EMULATE_INLINE void multiply_quads(
    std::uint32_t (&d)[kHasHalves ? 4 : 8],
    const std::uint32_t (&a)[2],
    const std::uint32_t (&b)[2],
    const std::uint32_t (&c)[kHasHalves ? 4 : 8]
) {
    const int lane = static_cast<int>(current_thread().lane);
    int rows[8], columns[8];
    float sums[8];
    for (int i = 0; i < 8; ++i) {
        rows[i] = (kHasHalves ? lane % 4 : (lane & 1) + (i & 2)) + lane / 16 * 4;
        columns[i] = kHasHalves ? i : (i & 4) + (lane & 2) + (i & 1);
        sums[i] = kHasHalves ? HalfBits::to(c[i / 2] >> i % 2 * 16 & 0xffff)
                             : std::bit_cast<float>(c[kHasHalves ? 0 : i]);
    }
    multiply_in_quad_pairs<kAIsColumn, kBIsRow>(sums, rows, columns, a, b);
    for (int i = 0; i < (kHasHalves ? 4 : 8); ++i) {
        d[i] =
            kHasHalves
                ? packed<HalfBits, Round::kRn, false, false>(sums[(2 * i + 1) % 8], sums[2 * i % 8])
                : std::bit_cast<std::uint32_t>(sums[i]);
    }
}

}  // namespace tmaasync_emulate::inline_ptx
