// One tcgen05.mma by its kind, and the kind of integers.
#include "tensor_cores/tcgen05_multiply.hpp"

#include <algorithm>

#include "tensor_cores/tcgen05_kinds.hpp"

namespace tmaasync_emulate {

namespace {

// D's words and the sums of the terms; they saturate once.
[[gnu::always_inline]] inline void add_saturated(const Lanes<uint32_t>& sums, uint32_t* words) {
    for (uint32_t i = 0; i < kLanes; ++i) {
        const int64_t sum = int64_t{static_cast<int32_t>(words[i])} + static_cast<int32_t>(sums[i]);
        words[i] = static_cast<uint32_t>(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
    }
}

// Sums of at most 64 terms fit; with D's old value they wrap, or saturate.
[[gnu::always_inline]] inline void multiply_row(
    const Tcgen05Multiplication& mma, uint32_t row, const AccumulatorWords& d
) {
    const InstructionDescriptor& at = mma.instruction();
    const uint32_t depth = at.stored_k();
    const uint32_t* const a = mma.decoded().a + (d.row + row) * depth;
    uint32_t rows_of_b[kMaxTcgen05Depth];
    for (uint32_t k = 0; k < depth; ++k) {
        rows_of_b[k] = (at.is_sparse ? mma.indices[d.row + row][k] : k) * kDecodedPitch + d.column;
    }
    for (uint32_t column = 0; column < d.columns; column += kLanes) {
        const uint32_t* const b = mma.decoded().b + column;
        Lanes<uint32_t> sums = {};
#pragma GCC unroll 4
        for (uint32_t k = 0; k < depth; ++k) sums += a[k] * load(b + rows_of_b[k]);
        uint32_t* const words = d.words + row * d.pitch + column;
        if (mma.accumulates && at.saturates) {
            add_saturated(sums, words);
        } else {
            store(words, mma.accumulates ? sums + load(words) : sums);
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"), optimize("O3"))) void multiply_row_avx2(
    const Tcgen05Multiplication& mma, uint32_t row, const AccumulatorWords& d
) {
    multiply_row(mma, row, d);
}
#endif

void multiply_integers(const Tcgen05Multiplication& mma, const AccumulatorWords& d) {
    for (uint32_t row = 0; row < d.rows; ++row) {
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2")) {
            multiply_row_avx2(mma, row, d);
            continue;
        }
#endif
        multiply_row(mma, row, d);
    }
}

}  // namespace

void Tcgen05Multiplication::multiply(
    uint32_t row, uint32_t rows, uint32_t column, uint32_t columns, uint32_t* d, std::size_t pitch
) const {
    const AccumulatorWords words{row, rows, column, columns, d, pitch};
    if (instruction_.form.kind == Tcgen05Kind::kI8) return multiply_integers(*this, words);
    if (instruction_.form.is_packed()) return multiply_groups(*this, words);
    multiply_floats(*this, words);
}

}  // namespace tmaasync_emulate
