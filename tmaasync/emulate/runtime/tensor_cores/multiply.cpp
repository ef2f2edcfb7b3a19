// The arithmetic of wgmma. It needs nothing of a thread but the location of its registers.
#include "tensor_cores/multiply.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <tmaasync_emulate/calls.hpp>
#include <type_traits>

#include "tensor_cores/operands.hpp"

namespace tmaasync_emulate {

namespace {

// --- elements ------------------------------------------------------------------------------------

float from_half(uint16_t bits) {
    _Float16 value;
    std::memcpy(&value, &bits, sizeof(value));
    return static_cast<float>(value);
}

uint16_t to_half(float value) {
    const auto half = static_cast<_Float16>(value);
    uint16_t bits;
    std::memcpy(&bits, &half, sizeof(bits));
    return bits;
}

// e4m3 has four bits of exponent and three of mantissa, no infinity, and one NaN of either sign.
float from_e4m3(uint8_t bits) {
    const uint32_t exponent = bits >> 3 & 15, mantissa = bits & 7;
    const uint32_t sign = static_cast<uint32_t>(bits >> 7) << 31;
    if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * static_cast<float>(mantissa) / 512;
    return std::bit_cast<float>(sign | (exponent + 120) << 23 | mantissa << 20);
}

template <typename Convert>
std::array<float, 256> table_of(Convert convert) {
    std::array<float, 256> values;
    for (uint32_t bits = 0; bits < 256; ++bits) values[bits] = convert(static_cast<uint8_t>(bits));
    return values;
}

// The element type of an operand: its bits, and the value that is multiplied.
struct Half {
    using Bits = uint16_t;
    using Value = float;
    static Value value(Bits bits) { return from_half(bits); }
};
struct Bfloat16 {
    using Bits = uint16_t;
    using Value = float;
    static Value value(Bits bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
};
struct Tfloat32 {
    using Bits = uint32_t;
    using Value = float;
    // tf32 has ten bits of mantissa. The tensor cores ignore the others.
    static Value value(Bits bits) { return std::bit_cast<float>(bits & ~0x1fffu); }
};
struct E4M3 {
    using Bits = uint8_t;
    using Value = float;
    static Value value(Bits bits) {
        static const auto values = table_of(from_e4m3);
        return values[bits];
    }
};
struct E5M2 {
    using Bits = uint8_t;
    using Value = float;
    static Value value(Bits bits) {
        static const auto values =
            table_of([](uint8_t byte) { return from_half(static_cast<uint16_t>(byte << 8)); });
        return values[bits];
    }
};
struct Signed {
    using Bits = uint8_t;
    using Value = uint32_t;
    static Value value(Bits bits) { return static_cast<Value>(static_cast<int8_t>(bits)); }
};
struct Unsigned {
    using Bits = uint8_t;
    using Value = uint32_t;
    static Value value(Bits bits) { return bits; }
};

// Calls `act` with the type of an element.
template <typename Act>
void with_element(MmaElement element, Act act) {
    switch (element) {
        case MmaElement::kF16:
            return act(Half{});
        case MmaElement::kBF16:
            return act(Bfloat16{});
        case MmaElement::kTF32:
            return act(Tfloat32{});
        case MmaElement::kE4M3:
            return act(E4M3{});
        case MmaElement::kE5M2:
            return act(E5M2{});
        case MmaElement::kS8:
            return act(Signed{});
        case MmaElement::kU8:
            return act(Unsigned{});
    }
}

// --- operands -----------------------------------------------------------------------------------

// Calls put(row, k, value) for every element of an operand in shared memory.
template <typename Element, typename Put>
void read_matrix(const Matrix& matrix, uint32_t rows, const uint8_t* window, Put put) {
    using Bits = typename Element::Bits;
    constexpr uint32_t kElements = kMmaUnitBytes / sizeof(Bits);
    matrix.for_each_unit(0, rows, [&](uint32_t row, uint32_t k, uint32_t where) {
        Bits bits[kElements];
        std::memcpy(bits, window + where, sizeof(bits));
        for (uint32_t i = 0; i < kElements; ++i) {
            const typename Element::Value value = Element::value(bits[i]);
            if (matrix.transposed) {
                put(row + i, k, value);
            } else {
                put(row, static_cast<uint32_t>(k / sizeof(Bits)) + i, value);
            }
        }
    });
}

// --- in registers --------------------------------------------------------------------------------

// PTX ISA: each register of A holds four bytes of a row.
template <typename Element, typename Put>
void read_registers(const GroupMma& mmas, Put put) {
    using Bits = typename Element::Bits;
    constexpr uint32_t kElements = 4 / sizeof(Bits);
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        const uint32_t row = thread / 32 * 16 + thread % 32 / 4;
        for (uint32_t i = 0; i < 4; ++i) {
            Bits bits[kElements];
            std::memcpy(bits, &mmas[thread]->a_registers[i], sizeof(bits));
            const uint32_t k = thread % 4 * kElements + i / 2 * 4 * kElements;
            for (uint32_t place = 0; place < kElements; ++place) {
                put(row + i % 2 * 8, k + place, Element::value(bits[place]));
            }
        }
    }
}

// --- accumulators --------------------------------------------------------------------------------

// The type of the accumulators: as a thread holds them, and as terms are added to them.
struct FloatSum {
    using Held = float;
    using Value = float;
    static Value load(Held held) { return held; }
    static Held store(Value value) { return value; }
};
struct HalfSum {
    using Held = uint16_t;  // the even column of a pair in the low half of its register
    using Value = float;
    static Value load(Held held) { return from_half(held); }
    static Held store(Value value) { return to_half(value); }
};
struct IntSum {
    using Held = uint32_t;
    using Value = uint32_t;
    static Value load(Held held) { return held; }
    static Held store(Value value) { return value; }
};

template <typename Act>
void with_sum(MmaSum sum, Act act) {
    switch (sum) {
        case MmaSum::kFloat:
            return act(FloatSum{});
        case MmaSum::kHalf:
            return act(HalfSum{});
        case MmaSum::kInt:
            return act(IntSum{});
    }
}

// PTX ISA: accumulator i of a thread is at this row and column of m64nN.
struct FragmentElement {
    uint32_t row;
    uint32_t column;

    FragmentElement(uint32_t thread, uint32_t i)
        : row(thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8),
          column(i / 4 * 8 + thread % 4 * 2 + i % 2) {}
};

// Calls act(the thread's accumulator, the buffer's accumulator) for all of them.
template <typename Sum, typename Act>
void for_each_sum(const GroupMma& mmas, MmaBuffers& at, Act act) {
    const uint32_t columns = mmas[0]->columns;
    auto* accumulators = reinterpret_cast<typename Sum::Value*>(at.accumulators);
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        auto* held = static_cast<typename Sum::Held*>(mmas[thread]->accumulators);
        for (uint32_t i = 0; i < columns / 2; ++i) {
            const FragmentElement element(thread, i);
            act(held[i], accumulators[element.row * columns + element.column]);
        }
    }
}

// --- multiplication ------------------------------------------------------------------------------

template <typename Element>
constexpr uint32_t kElementDepth = kMmaDepthBytes / sizeof(typename Element::Bits);

// Rows of a block, whose accumulators stay in vector registers while all of K is added. A GEMM of
// 512 cubed takes 0.0033 s of a core this way, and 0.037 s row by row (2026-11-23).
constexpr uint32_t kBlockRows = 4;
template <typename Value>
using Vector [[gnu::vector_size(32)]] = Value;
template <typename Value>
using VectorInMemory [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = Value;
constexpr uint32_t kVectorColumns = 8;  // N is a multiple of it

// Adds K to `kVectors` vectors of accumulators of a block of rows, each in the order of K.
template <typename Value, uint32_t kDepth, uint32_t kVectors>
__attribute__((always_inline)) inline void add_block(
    Value* accumulators, const Value* a, const Value* b, uint32_t columns
) {
    const auto held = [=](uint32_t row, uint32_t i) -> VectorInMemory<Value>& {
        Value* const place = accumulators + row * columns + i * kVectorColumns;
        return *reinterpret_cast<VectorInMemory<Value>*>(place);
    };
    Vector<Value> sums[kBlockRows][kVectors];
    for (uint32_t row = 0; row < kBlockRows; ++row) {
        for (uint32_t i = 0; i < kVectors; ++i) sums[row][i] = held(row, i);
    }
    for (uint32_t k = 0; k < kDepth; ++k) {
        const auto* terms = reinterpret_cast<const VectorInMemory<Value>*>(b + k * columns);
        for (uint32_t row = 0; row < kBlockRows; ++row) {
            for (uint32_t i = 0; i < kVectors; ++i) sums[row][i] += a[row * kDepth + k] * terms[i];
        }
    }
    for (uint32_t row = 0; row < kBlockRows; ++row) {
        for (uint32_t i = 0; i < kVectors; ++i) held(row, i) = sums[row][i];
    }
}

// Adds K to one row, which may hold infinities and NaNs.
template <uint32_t kDepth>
__attribute__((always_inline)) inline void add_row(
    float* accumulators, const float* a, const float* b, uint32_t columns
) {
    for (uint32_t column = 0; column < columns; ++column) {
        float sum = accumulators[column];
        for (uint32_t k = 0; k < kDepth; ++k) sum += a[k] * b[k * columns + column];
        accumulators[column] = sum;
    }
}

template <typename Value, uint32_t kDepth>
__attribute__((always_inline)) inline void add_rows(
    Value* accumulators, const Value* a, const Value* b, uint32_t columns
) {
    for (uint32_t row = 0; row < kMmaRows; row += kBlockRows) {
        Value* const sums = accumulators + row * columns;
        uint32_t column = 0;
        for (; column + 2 * kVectorColumns <= columns; column += 2 * kVectorColumns) {
            add_block<Value, kDepth, 2>(sums + column, a + row * kDepth, b + column, columns);
        }
        if (column < columns) {
            add_block<Value, kDepth, 1>(sums + column, a + row * kDepth, b + column, columns);
        }
    }
}

// The tensor cores align the terms of one FP8 instruction, a[k] * b[k] and the accumulator, to the
// power of two of the greatest term. They keep 13 bits below it and cut each term towards zero.
// This is how an H200's accumulators shrink: for positive e4m3 values by 1.51 % along 1024 of K and
// by 6.99 % along 4096, for 16384 equal values by 26.3 %.
constexpr uint32_t kFloat8Bits = 13;

template <uint32_t kDepth>
__attribute__((always_inline)) inline void add_row_of_float8(
    float* accumulators, const float* a, const float* b, uint32_t columns
) {
    const auto magnitude = [](float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; };
    const auto power_of_2 = [](uint32_t biased) { return std::bit_cast<float>(biased << 23); };
    uint32_t greatest[kMaxMmaColumns];
    uint32_t greatest_of_all = 0;
    for (uint32_t column = 0; column < columns; ++column) {
        greatest[column] = magnitude(accumulators[column]);
    }
    for (uint32_t k = 0; k < kDepth; ++k) {
        for (uint32_t column = 0; column < columns; ++column) {
            const uint32_t term = magnitude(a[k] * b[k * columns + column]);
            greatest[column] = std::max(greatest[column], term);
        }
    }
    for (uint32_t column = 0; column < columns; ++column) {
        greatest_of_all = std::max(greatest_of_all, greatest[column]);
    }
    constexpr uint32_t kInfinity = 0x7f800000;
    if (greatest_of_all >= kInfinity) return add_row<kDepth>(accumulators, a, b, columns);

    // Integers, in units of the least bit that is kept.
    uint32_t exponents[kMaxMmaColumns];
    float units[kMaxMmaColumns];
    int32_t kept[kMaxMmaColumns];
    for (uint32_t column = 0; column < columns; ++column) {
        exponents[column] = std::max(greatest[column] >> 23, kFloat8Bits + 1);
        units[column] = power_of_2(2 * 127 + kFloat8Bits - exponents[column]);
        kept[column] = static_cast<int32_t>(accumulators[column] * units[column]);
    }
    for (uint32_t k = 0; k < kDepth; ++k) {
        for (uint32_t column = 0; column < columns; ++column) {
            const float term = a[k] * b[k * columns + column];
            kept[column] += static_cast<int32_t>(term * units[column]);
        }
    }
    for (uint32_t column = 0; column < columns; ++column) {
        accumulators[column] =
            static_cast<float>(kept[column]) * power_of_2(exponents[column] - kFloat8Bits);
    }
}

template <typename Value, uint32_t kDepth>
__attribute__((always_inline)) inline void multiply_body(MmaBuffers& at, uint32_t columns) {
    const auto* a = reinterpret_cast<const Value*>(at.a);
    const auto* b = reinterpret_cast<const Value*>(at.b);
    auto* accumulators = reinterpret_cast<Value*>(at.accumulators);
    if constexpr (std::is_same_v<Value, float> && kDepth == kMmaDepthBytes) {
        for (uint32_t row = 0; row < kMmaRows; ++row) {
            add_row_of_float8<kDepth>(accumulators + row * columns, a + row * kDepth, b, columns);
        }
    } else {
        add_rows<Value, kDepth>(accumulators, a, b, columns);
    }
}

#if defined(__x86_64__)
template <typename Value, uint32_t kDepth>
__attribute__((target("avx2"), optimize("O3"))) void multiply_avx2(
    MmaBuffers& at, uint32_t columns
) {
    multiply_body<Value, kDepth>(at, columns);
}
#endif

template <typename Value, uint32_t kDepth>
void multiply(MmaBuffers& at, uint32_t columns) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return multiply_avx2<Value, kDepth>(at, columns);
#endif
    multiply_body<Value, kDepth>(at, columns);
}

void load_a(const GroupMma& mmas, const uint8_t* window, MmaBuffers& at) {
    const Mma& mma = *mmas[0];
    with_element(mma.a_element, [&](auto type) {
        using Element = decltype(type);
        using Value = typename Element::Value;
        constexpr uint32_t kDepth = kElementDepth<Element>;
        const auto put = [&, a = reinterpret_cast<Value*>(at.a)](
                             uint32_t row, uint32_t k, Value value
                         ) { a[row * kDepth + k] = mma.is_negated ? -value : value; };
        if (mma.a_in_registers) {
            read_registers<Element>(mmas, put);
        } else {
            read_matrix<Element>(matrix_a(mma), kMmaRows, window, put);
        }
    });
}

void load_b(const Mma& mma, const uint8_t* window, MmaBuffers& at) {
    with_element(mma.b_element, [&](auto type) {
        using Value = typename decltype(type)::Value;
        read_matrix<decltype(type)>(
            matrix_b(mma), mma.columns, window,
            [&, b = reinterpret_cast<Value*>(at.b)](uint32_t column, uint32_t k, Value value) {
                b[k * mma.columns + column] = value;
            }
        );
    });
}

// fp16 accumulators are rounded once, when all terms of the instruction are added.
void round_to_half(MmaBuffers& at, uint32_t columns) {
    auto* accumulators = reinterpret_cast<float*>(at.accumulators);
    for (uint32_t i = 0; i < kMmaRows * columns; ++i)
        accumulators[i] = from_half(to_half(accumulators[i]));
}

}  // namespace

void gather_accumulators(const GroupMma& mmas, MmaBuffers& at) {
    with_sum(mmas[0]->sum, [&](auto type) {
        using Sum = decltype(type);
        for_each_sum<Sum>(mmas, at, [](auto& held, auto& sum) { sum = Sum::load(held); });
    });
}

void scatter_accumulators(const GroupMma& mmas, MmaBuffers& at) {
    with_sum(mmas[0]->sum, [&](auto type) {
        using Sum = decltype(type);
        for_each_sum<Sum>(mmas, at, [](auto& held, auto& sum) { held = Sum::store(sum); });
    });
}

void execute_mma(const GroupMma& mmas, const uint8_t* window, MmaBuffers& at) {
    const Mma& mma = *mmas[0];
    load_a(mmas, window, at);
    load_b(mma, window, at);
    with_element(mma.a_element, [&](auto type) {
        using Element = decltype(type);
        multiply<typename Element::Value, kElementDepth<Element>>(at, mma.columns);
    });
    if (mma.sum == MmaSum::kHalf) round_to_half(at, mma.columns);
}

}  // namespace tmaasync_emulate
