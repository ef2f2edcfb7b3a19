// Where wgmma finds the elements of its operands, and what they are.
#pragma once

#include <array>
#include <bit>
#include <cstring>

#include "machine.hpp"

namespace tmaasync_emulate {

constexpr uint32_t kGroupThreads = 128;
constexpr uint32_t kMmaDepthBytes = 32;  // of every row of A and column of B
constexpr uint32_t kMmaUnitBytes = 16;

// --- elements ------------------------------------------------------------------------------------

inline float from_half(uint16_t bits) {
    _Float16 value;
    std::memcpy(&value, &bits, sizeof(value));
    return static_cast<float>(value);
}

inline uint16_t to_half(float value) {
    const auto half = static_cast<_Float16>(value);
    uint16_t bits;
    std::memcpy(&bits, &half, sizeof(bits));
    return bits;
}

// Four bits of exponent, three of mantissa; no infinity, and one NaN of either sign.
inline float from_e4m3(uint8_t bits) {
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

// The type of an operand: its bits, and the value that is multiplied.
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
    // Ten bits of mantissa: the tensor cores do not look at the others.
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

inline uint32_t element_bytes(MmaElement element) {
    uint32_t bytes = 0;
    with_element(element, [&](auto type) { bytes = sizeof(typename decltype(type)::Bits); });
    return bytes;
}

inline uint32_t depth_of(const Mma& mma) {
    return kMmaDepthBytes / element_bytes(mma.a_element);
}

// --- in shared memory ----------------------------------------------------------------------------

// PTX ISA: "matrix descriptor".
struct Matrix {
    uint32_t start;
    uint32_t leading;
    uint32_t stride;
    uint32_t swizzle;  // 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes
    uint32_t base;     // where in its pattern the operand starts, in lines of 128 bytes
    bool transposed;   // M or N contiguous, not K; of elements of two bytes

    Matrix(uint64_t descriptor, bool is_transposed)
        : start((descriptor & 0x3fff) << 4),
          leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4),
          swizzle((4 - static_cast<uint32_t>(descriptor >> 62)) % 4),
          base(descriptor >> 49 & 7),
          transposed(is_transposed) {}

    // Where the 16 bytes lie that begin with this row (of A, or column of B) at this byte along K;
    // transposed, with this row, the first of eight, at this k.
    uint32_t unit(uint32_t row, uint32_t k) const {
        const uint32_t address = start + (transposed ? across(row, k) : along(row, k));
        const uint32_t mask = (1u << swizzle) - 1;
        return address ^ ((address >> 7 & mask) << 4);
    }

    // PTX ISA, "base offset": 0 where the pattern, of eight spans, begins at a multiple of its
    // size. A step along the contiguous side stays within the first span.
    bool is_off_pattern() const {
        const uint32_t span = 16u << swizzle;
        return swizzle && base == 0 && start % (8 * span) >= span;
    }

    // All units of some rows: act(row, k, where).
    template <class Act>
    void for_each_unit(uint32_t begin, uint32_t end, Act act) const {
        if (transposed) {
            for (uint32_t k = 0; k < kMmaDepthBytes / 2; ++k) {
                for (uint32_t row = begin; row < end; row += 8) act(row, k, unit(row, k));
            }
            return;
        }
        for (uint32_t row = begin; row < end; ++row) {
            for (uint32_t k = 0; k < kMmaDepthBytes; k += kMmaUnitBytes) act(row, k, unit(row, k));
        }
    }

private:
    // K contiguous: groups of 8 rows.
    uint32_t along(uint32_t row, uint32_t k) const {
        const uint32_t group = row / 8 * stride;
        if (swizzle) return group + row % 8 * (16u << swizzle) + k;
        return group + k / 16 * leading + row % 8 * 16;
    }

    // M or N contiguous: groups of 8 k.
    uint32_t across(uint32_t row, uint32_t k) const {
        if (!swizzle) return row / 8 * stride + k / 8 * leading + k % 8 * 16;
        const uint32_t span = 16u << swizzle, elements = span / 2;
        return row / elements * leading + k / 8 * stride + k % 8 * span + row % elements * 2;
    }
};

inline Matrix matrix_a(const Mma& mma) {
    return {mma.a, mma.a_transposed};
}
inline Matrix matrix_b(const Mma& mma) {
    return {mma.b, mma.b_transposed};
}

// Hands every element of an operand in shared memory to put(row, k, value).
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

// PTX ISA: four bytes of a row in each register of A.
template <typename Element, typename Put>
void read_registers(const Fiber* threads, Put put) {
    using Bits = typename Element::Bits;
    constexpr uint32_t kElements = 4 / sizeof(Bits);
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        const uint32_t row = thread / 32 * 16 + thread % 32 / 4;
        for (uint32_t i = 0; i < 4; ++i) {
            Bits bits[kElements];
            std::memcpy(bits, &threads[thread].mmas.front().a_registers[i], sizeof(bits));
            const uint32_t k = thread % 4 * kElements + i / 2 * 4 * kElements;
            for (uint32_t place = 0; place < kElements; ++place) {
                put(row + i % 2 * 8, k + place, Element::value(bits[place]));
            }
        }
    }
}

}  // namespace tmaasync_emulate
