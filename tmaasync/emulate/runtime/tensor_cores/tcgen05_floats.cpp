// tcgen05.mma of floating-point kinds, without the packed four-bit elements. The rule is
// measured on a B200 (github.com/sf-tensor/tcgen05, MODEL.md; MMA-Sim, arXiv 2511.10909).
#include <algorithm>

#include "tensor_cores/tcgen05_elements.hpp"
#include "tensor_cores/tcgen05_kinds.hpp"

namespace tmaasync_emulate {

namespace {

// Within these greatest exponents no float overflows, and a term that is no normal float is cut
// to zero: with 25 bits its unit would be 2^-125. Elements beyond take the slow way.
constexpr int32_t kLeastFast = -100, kGreatestFast = 125;

// 16 terms of at most 2^27 units, less the last bits of 11-bit significands, stay below 2^31.
constexpr uint32_t kChunk = 16;          // along K
constexpr int32_t kBitsOfOneChunk = 20;  // with as few the terms of the longest K do

using Floats = Lanes<float>;
using Words = Lanes<uint32_t>;
using Integers = Lanes<int32_t>;
using HalfShorts [[gnu::vector_size(16), gnu::aligned(2), gnu::may_alias]] = int16_t;
using HalfIntegers [[gnu::vector_size(16)]] = int32_t;
using HalfFloats [[gnu::vector_size(16)]] = float;
using HalfWords [[gnu::vector_size(16), gnu::aligned(4), gnu::may_alias]] = uint32_t;
using Doubles = Lanes<double>;
using LongWords = Lanes<uint64_t>;

// D's old value.
FloatElement old_value(const Tcgen05Multiplication& mma, uint32_t word) {
    const bool is_half = mma.instruction().d == MmaSum::kHalf;
    FloatElement old = is_half ? half_element(word & 0xffff) : float_element(word);
    if (!mma.accumulates) old = {0, kExponentOfZero};
    old.value *= std::bit_cast<float>((127 - mma.scale_input_d) << 23);
    // A zero and a special number may have any exponent far from the others'.
    old.exponent -= static_cast<int16_t>(mma.scale_input_d);
    return old;
}

// The rows of B that a row of A is multiplied by.
struct RowOfA {
    const float* values;
    const int16_t* exponents;
    uint32_t depth;
    int32_t scale;
    uint32_t rows_of_b[kMaxTcgen05Depth];

    RowOfA(const Tcgen05Multiplication& mma, uint32_t row)
        : depth(mma.instruction().stored_k()), scale(mma.decoded().a_scales[row]) {
        values = reinterpret_cast<const float*>(mma.decoded().a) + row * depth;
        exponents = mma.decoded().a_exponents + row * depth;
        for (uint32_t k = 0; k < depth; ++k) {
            rows_of_b[k] = (mma.instruction().is_sparse ? mma.indices[row][k] : k) * kDecodedPitch;
        }
    }
};

// 16 columns of a row of D.
struct FloatBlock {
    alignas(32) int16_t greatest[kBlockColumns];  // exponents of terms, without scales
    alignas(32) float old[kBlockColumns];
    alignas(32) int32_t old_exponents[kBlockColumns];
    alignas(32) float units[kBlockColumns];      // factor of a term, to units of the last bit
    alignas(32) float old_units[kBlockColumns];  // factor of D's old value, to the same units
    alignas(32) float back[kBlockColumns];       // from units
    alignas(32) int32_t slow[kBlockColumns];     // not 0 if this way is not exact
    alignas(32) int32_t terms[kBlockColumns];    // the sum of some, in units
    alignas(32) double sums[kBlockColumns];      // exact, in units
    alignas(32) uint32_t results[kBlockColumns];
};

[[gnu::always_inline]] inline void find_greatest(
    const RowOfA& a, const int16_t* b_exponents, FloatBlock& block
) {
    Lanes<int16_t> greatest = load(b_exponents + a.rows_of_b[0]) + a.exponents[0];
#pragma GCC unroll 8
    for (uint32_t k = 1; k < a.depth; ++k) {
        const Lanes<int16_t> found = load(b_exponents + a.rows_of_b[k]) + a.exponents[k];
        greatest = found > greatest ? found : greatest;
    }
    store(block.greatest, greatest);
}

// D's old values: floats that all count in full.
[[gnu::always_inline]] inline void load_floats(const uint32_t* words, FloatBlock& block) {
    for (uint32_t i = 0; i < kBlockColumns; i += kLanes) {
        const Words magnitude = load(words + i) << 1;
        const Integers field = (Integers)(magnitude >> 24);  // special numbers' is slow
        const Integers exponent = (field > 1 ? field : Integers{} + 1) - 127;
        store(block.old_exponents + i, magnitude == 0 ? Integers{} + kExponentOfZero : exponent);
        store(block.old + i, (Floats)load(words + i));
    }
}

void load_others(
    const Tcgen05Multiplication& mma, const uint32_t* words, uint32_t columns, FloatBlock& block
) {
    for (uint32_t i = 0; i < kBlockColumns; ++i) {
        const FloatElement old = old_value(mma, i < columns ? words[i] : 0);
        block.old[i] = old.value;
        block.old_exponents[i] = old.exponent;
    }
}

[[gnu::always_inline]] inline Integers integers(const int16_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const HalfShorts*>(from), Integers);
}

[[gnu::always_inline]] inline bool is_any(const Integers& lanes) {
    const auto words = (LongWords)lanes;
    return words[0] | words[1] | words[2] | words[3];
}

// Returns whether an element is slow.
[[gnu::always_inline]] inline bool find_units(
    const RowOfA& a, const int16_t* b_scales, int32_t kept_bits, FloatBlock& block
) {
    Integers any = {};
    for (uint32_t i = 0; i < kBlockColumns; i += kLanes) {
        const Integers scale = b_scales ? integers(b_scales + i) + a.scale : Integers{};
        const Integers term = integers(block.greatest + i) + scale;
        const Integers old = load(block.old_exponents + i);
        Integers greatest = term > old ? term : old;
        const Integers slow =
            (greatest > kGreatestFast) | ((greatest < kLeastFast) & (greatest > kLeastExponent));
        any |= slow;
        greatest = greatest > kGreatestFast ? Integers{} + kGreatestFast : greatest;
        greatest = greatest < kLeastFast ? Integers{} + kLeastFast : greatest;
        const Integers unit = greatest - kept_bits;
        Integers field = 127 + scale - unit;
        if (b_scales) {
            field = field < 0 ? Integers{} : field;
            field = field > 254 ? Integers{} + 254 : field;
        }
        store(block.slow + i, slow);
        store(block.units + i, (Floats)(field << 23));
        store(block.old_units + i, (Floats)((127 - unit) << 23));
        store(block.back + i, (Floats)((127 + unit) << 23));
    }
    return is_any(any);
}

[[gnu::always_inline]] inline Doubles doubles(const int32_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const HalfIntegers*>(from), Doubles);
}

// Adds the terms of a part of K, in units.
[[gnu::always_inline]] inline void add_terms(
    const RowOfA& a, const float* b, uint32_t begin, uint32_t end, FloatBlock& block
) {
    const Floats low = load(block.units), high = load(block.units + kLanes);
    Words low_sum = {}, high_sum = {};
#pragma GCC unroll 4
    for (uint32_t k = begin; k < end; ++k) {
        const float* const from = b + a.rows_of_b[k];
        const Floats low_term = a.values[k] * load(from) * low;
        const Floats high_term = a.values[k] * load(from + kLanes) * high;
        low_sum += (Words) __builtin_convertvector(low_term, Integers);
        high_sum += (Words) __builtin_convertvector(high_term, Integers);
    }
    store(block.terms, (Integers)low_sum);
    store(block.terms + kLanes, (Integers)high_sum);
}

// Adds all terms to D's old value. Returns whether an element is slow, for it overflows.
[[gnu::always_inline]] inline bool sum_one_chunk(
    const RowOfA& a, const float* b, FloatBlock& block
) {
    Integers any = {};
    add_terms(a, b, 0, a.depth, block);
    for (uint32_t i = 0; i < kBlockColumns; i += kLanes) {
        const Floats scaled = load(block.old + i) * load(block.old_units + i);
        const Integers old = __builtin_convertvector(scaled, Integers);
        const Integers terms = load(block.terms + i);
        const auto sum = (Integers)((Words)old + (Words)terms);
        const Integers overflows = ((sum ^ old) & (sum ^ terms)) < 0;
        store(block.slow + i, load(block.slow + i) | overflows);
        store(block.terms + i, sum);
        any |= overflows;
    }
    for (uint32_t i = 0; i < kBlockColumns; i += 4) store(block.sums + i, doubles(block.terms + i));
    return is_any(any);
}

[[gnu::always_inline]] inline void sum_chunks(const RowOfA& a, const float* b, FloatBlock& block) {
    for (uint32_t i = 0; i < kBlockColumns; i += kLanes) {
        const Floats old = load(block.old + i) * load(block.old_units + i);
        store(block.terms + i, __builtin_convertvector(old, Integers));
    }
    for (uint32_t i = 0; i < kBlockColumns; i += 4) store(block.sums + i, doubles(block.terms + i));
    for (uint32_t begin = 0; begin < a.depth; begin += kChunk) {
        add_terms(a, b, begin, std::min(begin + kChunk, a.depth), block);
        for (uint32_t i = 0; i < kBlockColumns; i += 4) {
            store(block.sums + i, load(block.sums + i) + doubles(block.terms + i));
        }
    }
}

// Rounds the sums towards zero, and keeps these bits of a float. Half a vector at a time: a load of
// a whole one would wait for the stores of both halves.
[[gnu::always_inline]] inline void round_block(uint32_t kept, FloatBlock& block) {
    constexpr uint64_t kCut = ~((uint64_t{1} << 29) - 1);  // of a double to a float
    for (uint32_t i = 0; i < kBlockColumns; i += 4) {
        const auto cut = (Doubles)((LongWords)load(block.sums + i) & kCut);
        const auto back = *reinterpret_cast<const HalfFloats*>(block.back + i);
        const HalfFloats rounded = __builtin_convertvector(cut, HalfFloats) * back;
        *reinterpret_cast<HalfWords*>(block.results + i) = (HalfWords)rounded & kept;
    }
}

// Corrects elements of half precision, and those that this way is not exact for. With scale factors
// D's word stays as it is if all terms are zero; it may be -0.
[[gnu::noinline]] void correct_block(
    const Tcgen05Multiplication& mma,
    uint32_t row,
    uint32_t column,
    uint32_t columns,
    const uint32_t* words,
    FloatBlock& block
) {
    const bool is_half = mma.instruction().d == MmaSum::kHalf;
    const bool is_scaled = mma.instruction().form.is_block_scaled();
    for (uint32_t i = 0; i < columns; ++i) {
        if (block.slow[i] || (is_scaled && block.greatest[i] < kLeastExponent)) {
            block.results[i] = multiply_element(mma, row, column + i, words[i]);
        } else if (is_half) {
            block.results[i] = half_to_nearest(block.sums[i] * block.back[i]);
        }
    }
}

// Facts of an instruction for all its blocks.
struct FloatTraits {
    bool is_plain;   // D's old values are floats that count in full, or not at all
    bool corrected;  // every block needs corrections
    bool is_scaled;
    bool has_chunks;  // the terms of all of K may not fit in an integer
};

[[gnu::always_inline]] inline void multiply_block(
    const Tcgen05Multiplication& mma,
    const FloatTraits& traits,
    const RowOfA& a,
    uint32_t row,
    uint32_t column,
    uint32_t columns,
    uint32_t* words
) {
    const DecodedOperands& from = mma.decoded();
    FloatBlock block;
    find_greatest(a, from.b_exponents + column, block);
    if (traits.is_plain && columns == kBlockColumns) {
        static constexpr uint32_t kZeros[kBlockColumns] = {};
        load_floats(mma.accumulates ? words : kZeros, block);
    } else {
        load_others(mma, words, columns, block);
    }
    const int32_t kept = mma.sums.kept_bits;
    bool is_slow = traits.is_scaled ? find_units(a, from.b_scales + column, kept, block)
                                    : find_units(a, nullptr, kept, block);
    const auto* const b = reinterpret_cast<const float*>(from.b) + column;
    if (traits.has_chunks) {
        sum_chunks(a, b, block);
    } else {
        is_slow |= sum_one_chunk(a, b, block);
    }
    round_block(mma.sums.kept_of_float, block);
    if (is_slow || traits.corrected) correct_block(mma, row, column, columns, words, block);
    for (uint32_t i = 0; i < columns; i += 4) {
        *reinterpret_cast<HalfWords*>(words + i) =
            *reinterpret_cast<const HalfWords*>(block.results + i);
    }
}

[[gnu::always_inline]] inline void multiply_float_rows(
    const Tcgen05Multiplication& mma, const AccumulatorWords& d
) {
    const InstructionDescriptor& at = mma.instruction();
    const bool is_float = at.d == MmaSum::kFloat;
    const bool is_scaled = at.form.is_block_scaled();
    const FloatTraits traits{
        .is_plain = is_float && !(mma.accumulates && mma.scale_input_d),
        .corrected = !is_float || is_scaled,
        .is_scaled = is_scaled,
        .has_chunks = at.stored_k() > kChunk && mma.sums.kept_bits > kBitsOfOneChunk,
    };
    for (uint32_t row = 0; row < d.rows; ++row) {
        const RowOfA a(mma, d.row + row);
        for (uint32_t column = 0; column < d.columns; column += kBlockColumns) {
            const uint32_t left = d.columns - column;
            multiply_block(
                mma, traits, a, d.row + row, d.column + column,
                left < kBlockColumns ? left : kBlockColumns, d.words + row * d.pitch + column
            );
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"), optimize("O3"))) void multiply_float_rows_avx2(
    const Tcgen05Multiplication& mma, const AccumulatorWords& d
) {
    multiply_float_rows(mma, d);
}
#endif

}  // namespace

uint32_t multiply_element(
    const Tcgen05Multiplication& mma, uint32_t row, uint32_t column, uint32_t word
) {
    const DecodedOperands& from = mma.decoded();
    const RowOfA a(mma, row);
    const bool is_scaled = mma.instruction().form.is_block_scaled();
    const bool is_half = mma.instruction().d == MmaSum::kHalf;
    const int32_t scale = a.scale + from.b_scales[column];
    const FloatElement old = old_value(mma, word);
    const auto* const b = reinterpret_cast<const float*>(from.b) + column;
    // A term is exact in a double, and no finite one overflows.
    double specials = std::isfinite(old.value) ? 0 : old.value;
    int32_t greatest = kExponentOfZero * 2;
    for (uint32_t k = 0; k < a.depth; ++k) {
        const double term = double{a.values[k]} * b[a.rows_of_b[k]];
        if (!std::isfinite(term)) specials += term;
        if (term == 0) continue;
        const int32_t exponent = a.exponents[k] + from.b_exponents[a.rows_of_b[k] + column];
        greatest = std::max(greatest, exponent + scale);
    }
    const bool is_nan_scaled =
        is_scaled && std::max(a.scale, int32_t{from.b_scales[column]}) > kExponentOfSpecial / 2;
    if (is_nan_scaled || std::isnan(specials)) return is_half ? kHalfNan : kFloatNan;
    if (specials != 0) return is_half ? half_to_nearest(specials) : float_towards_zero(specials);
    if (is_scaled && greatest < kLeastExponent) return mma.accumulates ? word : 0;
    if (old.value != 0) greatest = std::max(greatest, int32_t{old.exponent});
    if (greatest < kLeastExponent) return 0;

    const int32_t unit = std::max(greatest, mma.sums.least_exponent) - mma.sums.kept_bits;
    double sum = std::trunc(std::ldexp(old.value, -unit));
    for (uint32_t k = 0; k < a.depth; ++k) {
        const double term = double{a.values[k]} * b[a.rows_of_b[k]];
        sum += std::trunc(std::ldexp(term, scale - unit));
    }
    const double exact = std::ldexp(sum, unit);
    return is_half ? half_to_nearest(exact) : float_towards_zero(exact) & mma.sums.kept_of_float;
}

void multiply_floats(const Tcgen05Multiplication& mma, const AccumulatorWords& d) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return multiply_float_rows_avx2(mma, d);
#endif
    multiply_float_rows(mma, d);
}

}  // namespace tmaasync_emulate
