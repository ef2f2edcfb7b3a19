// The arithmetic of one wgmma, from its operands to the registers of 128 threads.
#pragma once

#include "mma_operands.hpp"

namespace tmaasync_emulate {

// --- sums ----------------------------------------------------------------------------------------

// The type of the sums: as a thread holds them, and as they are added up.
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
struct FragmentPlace {
    uint32_t row;
    uint32_t column;

    FragmentPlace(uint32_t thread, uint32_t i)
        : row(thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8),
          column(i / 4 * 8 + thread % 4 * 2 + i % 2) {}
};

// act(what a thread holds, what the buffer does) for all of them.
template <typename Sum, typename Act>
void for_each_sum(Fiber* threads, const Mma& first, MmaBuffers& at, Act act) {
    auto* sums = reinterpret_cast<typename Sum::Value*>(at.sums);
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
        auto* held = static_cast<typename Sum::Held*>(threads[thread].mmas.front().sums);
        for (uint32_t i = 0; i < first.columns / 2; ++i) {
            const FragmentPlace place(thread, i);
            act(held[i], sums[place.row * first.columns + place.column]);
        }
    }
}

inline void gather_sums(Fiber* threads, const Mma& first, MmaBuffers& at) {
    with_sum(first.sum, [&](auto type) {
        using Sum = decltype(type);
        for_each_sum<Sum>(threads, first, at, [](auto& held, auto& sum) { sum = Sum::load(held); });
    });
}

inline void scatter_sums(Fiber* threads, const Mma& first, MmaBuffers& at) {
    with_sum(first.sum, [&](auto type) {
        using Sum = decltype(type);
        for_each_sum<Sum>(threads, first, at, [](auto& held, auto& sum) {
            held = Sum::store(sum);
        });
    });
}

// --- the product ---------------------------------------------------------------------------------

template <typename Value, uint32_t kDepth>
__attribute__((always_inline)) inline void multiply_body(MmaBuffers& at, uint32_t columns) {
    const auto* b = reinterpret_cast<const Value*>(at.b);
    for (uint32_t row = 0; row < kMmaRows; ++row) {
        const Value* a = reinterpret_cast<const Value*>(at.a) + row * kDepth;
        Value* sums = reinterpret_cast<Value*>(at.sums) + row * columns;
        for (uint32_t column = 0; column < columns; ++column) {
            Value sum = sums[column];
            for (uint32_t k = 0; k < kDepth; ++k) sum += a[k] * b[k * columns + column];
            sums[column] = sum;
        }
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

inline void load_a(Fiber* threads, const Mma& mma, const uint8_t* window, MmaBuffers& at) {
    with_element(mma.a_element, [&](auto type) {
        using Element = decltype(type);
        using Value = typename Element::Value;
        constexpr uint32_t kDepth = kMmaDepthBytes / sizeof(typename Element::Bits);
        const auto put = [&, a = reinterpret_cast<Value*>(at.a)](
                             uint32_t row, uint32_t k, Value value
                         ) { a[row * kDepth + k] = mma.is_negated ? -value : value; };
        if (mma.a_in_registers) {
            read_registers<Element>(threads, put);
        } else {
            read_matrix<Element>(matrix_a(mma), kMmaRows, window, put);
        }
    });
}

inline void load_b(const Mma& mma, const uint8_t* window, MmaBuffers& at) {
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

// Sums of fp16 are rounded once, when all products of the instruction are added.
inline void round_to_half(MmaBuffers& at, uint32_t columns) {
    auto* sums = reinterpret_cast<float*>(at.sums);
    for (uint32_t i = 0; i < kMmaRows * columns; ++i) sums[i] = from_half(to_half(sums[i]));
}

inline void execute_mma(Fiber* threads, const Mma& mma, const uint8_t* window, MmaBuffers& at) {
    load_a(threads, mma, window, at);
    load_b(mma, window, at);
    with_element(mma.a_element, [&](auto type) {
        using Element = decltype(type);
        multiply<typename Element::Value, kMmaDepthBytes / sizeof(typename Element::Bits)>(
            at, mma.columns
        );
    });
    if (mma.sum == MmaSum::kHalf) round_to_half(at, mma.columns);
}

}  // namespace tmaasync_emulate
