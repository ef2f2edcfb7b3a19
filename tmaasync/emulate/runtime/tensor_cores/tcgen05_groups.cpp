// tcgen05.mma of packed four-bit elements: mxf4 and mxf4nvf4. Terms of a group along K are
// summed exactly; the groups are then cut to a common unit. The rules are measured on a B200
// (github.com/sf-tensor/tcgen05, MODEL.md).
#include <algorithm>

#include "tensor_cores/tcgen05_elements.hpp"
#include "tensor_cores/tcgen05_kinds.hpp"

namespace tmaasync_emulate {

namespace {

constexpr uint32_t kFinest = 4;  // along K
constexpr uint32_t kMaxGroups = kMaxTcgen05Depth / kFinest;
// Bits kept below the greatest exponent of terms and D, and below the greatest one of scale factors
// or D.
constexpr int32_t kProductBits = 39, kScaleBits = 35;

// Groups of four along K, of 16 columns. An element of A, or B, is half an integer.
struct GroupBlock {
    uint32_t groups;
    alignas(32) int16_t sums[kMaxGroups][kBlockColumns];      // in quarters
    alignas(32) int16_t greatest[kMaxGroups][kBlockColumns];  // exponents of terms, without scales
};

[[gnu::always_inline]] inline void sum_groups_body(
    const Tcgen05Multiplication& mma, uint32_t row, uint32_t column, GroupBlock& block
) {
    const InstructionDescriptor& at = mma.instruction();
    const DecodedOperands& from = mma.decoded();
    const uint32_t depth = at.stored_k();
    const int16_t* const a = reinterpret_cast<const int16_t*>(from.a) + row * depth;
    const int16_t* const a_exponents = from.a_exponents + row * depth;
    block.groups = at.k / kFinest;
    for (uint32_t group = 0; group < block.groups; ++group) {
        for (uint32_t i = 0; i < kBlockColumns; ++i) {
            block.sums[group][i] = 0;
            block.greatest[group][i] = 2 * kExponentOfZero;
        }
    }
    for (uint32_t k = 0; k < depth; ++k) {
        const uint32_t at_k = at.is_sparse ? mma.indices[row][k] : k;
        const uint32_t place = at_k * kDecodedPitch + column;
        const auto* const b = reinterpret_cast<const int16_t*>(from.b) + place;
        auto& sum = *reinterpret_cast<Shorts*>(block.sums[at_k / kFinest]);
        auto& greatest = *reinterpret_cast<Shorts*>(block.greatest[at_k / kFinest]);
        sum += a[k] * *reinterpret_cast<const Shorts*>(b);
        const Shorts found =
            a_exponents[k] + *reinterpret_cast<const Shorts*>(from.b_exponents + place);
        greatest = found > greatest ? found : greatest;
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"), optimize("O3"))) void sum_groups_avx2(
    const Tcgen05Multiplication& mma, uint32_t row, uint32_t column, GroupBlock& block
) {
    sum_groups_body(mma, row, column, block);
}
#endif

void sum_groups(
    const Tcgen05Multiplication& mma, uint32_t row, uint32_t column, GroupBlock& block
) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return sum_groups_avx2(mma, row, column, block);
#endif
    sum_groups_body(mma, row, column, block);
}

// significand * 2^unit, towards zero in units of 2^`to`.
int64_t cut(int64_t significand, int32_t unit, int32_t to) {
    if (unit >= to) return significand * (int64_t{1} << std::min(unit - to, 62));
    const int32_t shift = to - unit;
    if (shift > 62) return 0;
    const int64_t magnitude = (significand < 0 ? -significand : significand) >> shift;
    return significand < 0 ? -magnitude : magnitude;
}

// The exact sum of a group's terms: significand * 2^unit.
struct Group {
    int64_t significand;
    int32_t unit;
    int32_t exponent;        // the greatest of its terms
    int32_t scale_exponent;  // of both scale factors
    bool has_terms;          // that are not zero
};

// D's old value: significand * 2^unit.
struct Old {
    int64_t significand = 0;
    int32_t unit = 0;
    int32_t exponent = kExponentOfZero;

    explicit Old(uint32_t word) {
        const int32_t field = word >> 23 & 255;
        const int64_t magnitude = (word & 0x7fffff) | (field ? 0x800000 : 0);
        if (magnitude == 0) return;
        significand = word >> 31 ? -magnitude : magnitude;
        exponent = std::max(field, 1) - 127;
        unit = exponent - 23;
    }
};

// The groups of one element of D.
struct GroupSum {
    Group groups[kMaxGroups];
    uint32_t count = 0;
    int32_t greatest = 2 * kExponentOfZero;        // R
    int32_t greatest_scale = 2 * kExponentOfZero;  // S
    Old old;

    explicit GroupSum(uint32_t word) : old(word) {}

    void add(const Group& group) {
        groups[count++] = group;
        if (!group.has_terms) return;
        greatest = std::max(greatest, group.exponent);
        greatest_scale = std::max(greatest_scale, group.scale_exponent);
    }
};

uint32_t rounded(int64_t sum, int32_t unit) {
    return float_towards_zero(std::ldexp(static_cast<double>(sum), unit));
}

// Scale factors of e4m3. Groups of four; where D's old value leads, groups with one scale factor.
uint32_t sum_of_e4m3(const GroupSum& terms, uint32_t groups_of_scale) {
    const Old& old = terms.old;
    const bool old_leads = old.significand && old.exponent >= terms.greatest;
    const int32_t top = std::max(terms.greatest, old.exponent);
    const int32_t unit = old_leads
                             ? old.exponent - kScaleBits
                             : std::max(top - kProductBits, terms.greatest_scale - kScaleBits);
    const uint32_t together = old_leads ? groups_of_scale : 1;
    int64_t sum = cut(old.significand, old.unit, unit);
    for (uint32_t i = 0; i < terms.count; i += together) {
        int64_t significand = 0;
        for (uint32_t j = i; j < i + together; ++j) significand += terms.groups[j].significand;
        sum += cut(significand, terms.groups[i].unit, unit);
    }
    return rounded(sum, unit);
}

// Scale factors of e8m0.
uint32_t sum_of_e8m0(const GroupSum& terms) {
    const Old& old = terms.old;
    const int32_t unit = std::max(
        {terms.greatest - kProductBits, terms.greatest_scale - kScaleBits,
         old.exponent - kProductBits}
    );
    int64_t cuts[kMaxGroups];
    const int64_t first = cut(old.significand, old.unit, unit);
    int64_t sum = first;
    for (uint32_t i = 0; i < terms.count; ++i) {
        const Group& group = terms.groups[i];
        const bool old_leads = old.significand && group.has_terms && old.exponent >= group.exponent;
        const int32_t coarse = old_leads ? std::max(unit, old.exponent - kScaleBits) : unit;
        cuts[i] = cut(group.significand, group.unit, coarse) * (int64_t{1} << (coarse - unit));
        sum += cuts[i];
    }
    const uint32_t result = rounded(sum, unit);
    const uint32_t magnitude = result & 0x7fffffff;
    if (magnitude == 0 || magnitude >= 0x800000) return result;
    // A subnormal result loses small groups whose scale factors are not the greatest.
    constexpr int32_t kFloor = -174;
    sum = first;
    for (uint32_t i = 0; i < terms.count; ++i) {
        const Group& group = terms.groups[i];
        const bool is_small = group.has_terms && group.scale_exponent < terms.greatest_scale;
        const double value = std::ldexp(static_cast<double>(cuts[i]), unit);
        if (!is_small || std::fabs(value) >= std::ldexp(1.0, std::max(kFloor, unit)))
            sum += cuts[i];
    }
    return rounded(sum, unit);
}

// mma.sync of sm_120: every K = 16 (of sparse A 32) is summed exactly, and cut 35 bits below the
// greatest exponent of scale factors and D's old value (MMA-Sim, arXiv 2511.10909).
uint32_t sum_of_warp(const GroupSum& terms) {
    const Old& old = terms.old;
    const int32_t unit = std::max(terms.greatest_scale, old.exponent) - kScaleBits;
    int64_t sum = cut(old.significand, old.unit, unit);
    for (uint32_t i = 0; i < terms.count; ++i) {
        sum += cut(terms.groups[i].significand, terms.groups[i].unit, unit);
    }
    return rounded(sum, unit);
}

class Groups {
public:
    Groups(const Tcgen05Multiplication& mma, uint32_t row)
        : mma_(mma), at_(mma.instruction()), row_(row) {
        per_scale_ = at_.k / at_.scales() / kFinest;
        // Exact sums: K = 16 with scale factors of e8m0 (32 if A is sparse, by analogy); K = 4 with
        // e4m3.
        const bool is_long = mma.is_of_warp || at_.has_e8m0_scales;
        together_ = !is_long ? 1 : at_.is_sparse ? 8 : 4;
    }

    uint32_t element(const GroupBlock& block, uint32_t i, uint32_t column, uint32_t word) const {
        if (!mma_.accumulates) word = 0;
        GroupSum terms(word);
        bool is_nan = false;
        for (uint32_t first = 0; first < block.groups; first += together_) {
            const ScaleFactor a = scale(mma_.a_scales[row_][first / per_scale_]);
            const ScaleFactor b = scale(mma_.b_scales[column][first / per_scale_]);
            is_nan |= a.is_nan || b.is_nan;
            terms.add(group_at(block, first, i, a, b));
        }
        const bool old_is_special = (word >> 23 & 255) == 255;
        if (is_nan || (old_is_special && (word & 0x7fffff))) return kFloatNan;
        if (old_is_special || terms.greatest < kLeastExponent) return word;
        if (mma_.is_of_warp) return sum_of_warp(terms);
        return at_.has_e8m0_scales ? sum_of_e8m0(terms) : sum_of_e4m3(terms, per_scale_);
    }

private:
    ScaleFactor scale(uint8_t code) const {
        return at_.has_e8m0_scales ? e8m0_scale(code) : e4m3_scale(code);
    }

    Group group_at(
        const GroupBlock& block,
        uint32_t first,
        uint32_t i,
        const ScaleFactor& a,
        const ScaleFactor& b
    ) const {
        int32_t sum = 0, exponent = 2 * kExponentOfZero;
        for (uint32_t group = first; group < first + together_; ++group) {
            sum += block.sums[group][i];
            exponent = std::max(exponent, int32_t{block.greatest[group][i]});
        }
        const int32_t significand = a.significand * b.significand;
        const int32_t scale_exponent = a.exponent + b.exponent;
        return {
            int64_t{sum} * significand, a.unit + b.unit - 2, exponent + scale_exponent,
            scale_exponent, significand != 0 && exponent >= kLeastExponent
        };
    }

    const Tcgen05Multiplication& mma_;
    const InstructionDescriptor& at_;
    uint32_t row_;
    uint32_t per_scale_;
    uint32_t together_;
};

}  // namespace

void multiply_groups(const Tcgen05Multiplication& mma, const AccumulatorWords& d) {
    GroupBlock block;
    for (uint32_t row = 0; row < d.rows; ++row) {
        const Groups groups(mma, d.row + row);
        for (uint32_t column = 0; column < d.columns; column += kBlockColumns) {
            sum_groups(mma, d.row + row, d.column + column, block);
            uint32_t* const words = d.words + row * d.pitch + column;
            for (uint32_t i = 0; i < std::min(kBlockColumns, d.columns - column); ++i) {
                words[i] = groups.element(block, i, d.column + column + i, words[i]);
            }
        }
    }
}

}  // namespace tmaasync_emulate
