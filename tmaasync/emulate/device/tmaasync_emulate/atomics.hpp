// Atomic functions: CUDA C++ Programming Guide, "Atomic Functions". Functions with the suffix
// _block are atomic for the threads of a block only; all others are atomic for all threads here.
#pragma once

#include <vector_types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tmaasync_emulate/calls.hpp>
#include <tmaasync_emulate/memory.hpp>
#include <type_traits>

namespace tmaasync_emulate {

enum class AtomicOp : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kInc, kDec, kExch };

template <AtomicOp kOp, typename T>
consteval uint64_t number_of() {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char* one = __PRETTY_FUNCTION__; *one != 0; ++one) {
        hash = (hash ^ static_cast<uint8_t>(*one)) * 0x100000001b3;
    }
    return hash;
}

// A number for an operation of a type that commutes with itself, else 0.
template <AtomicOp kOp, typename T>
consteval uint64_t commuting() {
    return kOp <= AtomicOp::kXor ? number_of<kOp, T>() : 0;
}

// Returns the old value.
template <typename T, typename Change>
TMAASYNC_EMULATE_INLINE auto change_atomically(T* address, Change change, AtomicForm form = {}) {
    static_assert(sizeof(T) <= 16 && (sizeof(T) & (sizeof(T) - 1)) == 0, "1, 2, 4, 8 or 16 bytes");
    T old{}, changed{};
    replace_atomically(address, &old, &old, sizeof(T));  // reads the old value
    changed = change(old);
    form.changes = std::memcmp(&old, &changed, sizeof(T)) != 0;
    begin_atomic(address, sizeof(T), form);
    do {
        changed = change(old);
    } while (!replace_atomically(address, &old, &changed, sizeof(T)));
    end_atomic(address, std::memcmp(&old, &changed, sizeof(T)) != 0);
    return old;
}

// Adds to a counter, of which the caller learns what `count` says. The counter returns to 0 after
// `last`, or never, if that is all ones.
template <typename T, typename Change>
TMAASYNC_EMULATE_INLINE T count_atomically(T* address, Change change, T last, Count count) {
    const uint64_t operation = number_of<AtomicOp::kInc, T>() + last;
    return static_cast<T>(
        count.seen(change_atomically(address, change, {.operation = operation, .count = count}))
    );
}

template <typename T>
using Same = std::type_identity_t<T>;

inline float flushed(float x) {
    return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

// PTX ISA, atom: subnormal floats become zeros in global memory, and not in shared memory.
template <typename T>
TMAASYNC_EMULATE_INLINE auto sum_in_place(const T* address, T old, T value) {
    if constexpr (std::is_same_v<T, float>) {
        if (!is_shared_in_cluster(address)) return flushed(flushed(old) + flushed(value));
    }
    return T(old + value);
}

// True if two elements have the same bits.
template <typename T>
bool has_bits_of(const T& a, const T& b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
}

}  // namespace tmaasync_emulate

#define TMAASYNC_EMULATE_ATOMIC(NAME, SCOPE, OP, CHANGED)                                   \
    template <typename T>                                                                   \
    TMAASYNC_EMULATE_INLINE auto NAME(T* address, tmaasync_emulate::Same<T> value) {        \
        return tmaasync_emulate::change_atomically(                                         \
            address, [=](T old) -> T { return CHANGED; },                                   \
            {.scope = tmaasync_emulate::Scope::SCOPE,                                       \
             .operation = tmaasync_emulate::commuting<tmaasync_emulate::AtomicOp::OP, T>()} \
        );                                                                                  \
    }
#define TMAASYNC_EMULATE_ATOMIC_COUNTER(NAME, SCOPE, CHANGED)                 \
    TMAASYNC_EMULATE_INLINE unsigned NAME(unsigned* address, unsigned last) { \
        return tmaasync_emulate::change_atomically(                           \
            address, [=](unsigned old) { return CHANGED; },                   \
            {.scope = tmaasync_emulate::Scope::SCOPE}                         \
        );                                                                    \
    }
#define TMAASYNC_EMULATE_ATOMICS(SUFFIX, SCOPE)                                                    \
    TMAASYNC_EMULATE_ATOMIC(                                                                       \
        atomicAdd##SUFFIX, SCOPE, kAdd, tmaasync_emulate::sum_in_place(address, old, value)        \
    )                                                                                              \
    TMAASYNC_EMULATE_ATOMIC(atomicSub##SUFFIX, SCOPE, kAdd, T(old - value))                        \
    TMAASYNC_EMULATE_ATOMIC(atomicMin##SUFFIX, SCOPE, kMin, value < old ? value : old)             \
    TMAASYNC_EMULATE_ATOMIC(atomicMax##SUFFIX, SCOPE, kMax, old < value ? value : old)             \
    TMAASYNC_EMULATE_ATOMIC(atomicAnd##SUFFIX, SCOPE, kAnd, T(old& value))                         \
    TMAASYNC_EMULATE_ATOMIC(atomicOr##SUFFIX, SCOPE, kOr, T(old | value))                          \
    TMAASYNC_EMULATE_ATOMIC(atomicXor##SUFFIX, SCOPE, kXor, T(old ^ value))                        \
    TMAASYNC_EMULATE_ATOMIC_COUNTER(atomicInc##SUFFIX, SCOPE, old >= last ? 0 : old + 1)           \
    TMAASYNC_EMULATE_ATOMIC_COUNTER(                                                               \
        atomicDec##SUFFIX, SCOPE, old == 0 || old > last ? last : old - 1                          \
    )                                                                                              \
    template <typename T>                                                                          \
    TMAASYNC_EMULATE_INLINE T atomicExch##SUFFIX(T* address, tmaasync_emulate::Same<T> value) {    \
        return tmaasync_emulate::change_atomically(                                                \
            address, [=](T) { return value; },                                                     \
            {tmaasync_emulate::OldValue::kUnused, tmaasync_emulate::Scope::SCOPE}                  \
        );                                                                                         \
    }                                                                                              \
    template <typename T>                                                                          \
    TMAASYNC_EMULATE_INLINE T atomicCAS##SUFFIX(                                                   \
        T* address, tmaasync_emulate::Same<T> expected, tmaasync_emulate::Same<T> value            \
    ) {                                                                                            \
        return tmaasync_emulate::change_atomically(                                                \
            address,                                                                               \
            [=](T old) { return tmaasync_emulate::has_bits_of(old, expected) ? value : old; },     \
            {.old = tmaasync_emulate::OldValue::kCompared,                                         \
             .scope = tmaasync_emulate::Scope::SCOPE,                                              \
             .expected = &expected}                                                                \
        );                                                                                         \
    }                                                                                              \
    /* A float at a time, as on the chip. */                                                       \
    TMAASYNC_EMULATE_INLINE float2 atomicAdd##SUFFIX(float2* address, float2 value) {              \
        return {atomicAdd##SUFFIX(&address->x, value.x), atomicAdd##SUFFIX(&address->y, value.y)}; \
    }                                                                                              \
    TMAASYNC_EMULATE_INLINE float4 atomicAdd##SUFFIX(float4* address, float4 value) {              \
        return {                                                                                   \
            atomicAdd##SUFFIX(&address->x, value.x),                                               \
            atomicAdd##SUFFIX(&address->y, value.y),                                               \
            atomicAdd##SUFFIX(&address->z, value.z),                                               \
            atomicAdd##SUFFIX(&address->w, value.w),                                               \
        };                                                                                         \
    }
TMAASYNC_EMULATE_ATOMICS(, kGpu)
TMAASYNC_EMULATE_ATOMICS(_block, kCta)
TMAASYNC_EMULATE_ATOMICS(_system, kSystem)
