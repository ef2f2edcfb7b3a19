// Atomic objects. An ordered operation is a relaxed one between fences of its scope, so that the
// race detector sees its order.
#pragma once

#include <bit>
#include <cstddef>
#include <cuda/detail/thread_scope.hpp>
#include <tuple>
#include <type_traits>

namespace cuda::std {

enum class memory_order { relaxed, consume, acquire, release, acq_rel, seq_cst };

inline constexpr memory_order memory_order_relaxed = memory_order::relaxed;
inline constexpr memory_order memory_order_consume = memory_order::consume;
inline constexpr memory_order memory_order_acquire = memory_order::acquire;
inline constexpr memory_order memory_order_release = memory_order::release;
inline constexpr memory_order memory_order_acq_rel = memory_order::acq_rel;
inline constexpr memory_order memory_order_seq_cst = memory_order::seq_cst;

}  // namespace cuda::std

namespace cuda {

using std::memory_order;
using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_consume;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

}  // namespace cuda

namespace cuda::detail {

template <typename To, typename From>
TMAASYNC_EMULATE_INLINE To same_bits(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    return __builtin_bit_cast(To, from);
}

template <thread_scope kScope>
TMAASYNC_EMULATE_INLINE void release_before(memory_order order) {
    const bool releases = order == memory_order_release || order == memory_order_acq_rel;
    if (releases || order == memory_order_seq_cst) fence<kScope>();
}

template <thread_scope kScope>
TMAASYNC_EMULATE_INLINE void acquire_after(memory_order order) {
    if (order != memory_order_relaxed && order != memory_order_release) fence<kScope>();
}

// Sets the scope of a volatile access to this address, which is otherwise the system.
template <thread_scope kScope>
TMAASYNC_EMULATE_INLINE void set_scope(const volatile void* address) {
    using ::tmaasync_emulate::Scope;
    if constexpr (kScope != thread_scope_system) {
        const bool is_of_block = kScope == thread_scope_block || kScope == thread_scope_thread;
        ::tmaasync_emulate::narrow_scope(address, is_of_block ? Scope::kCta : Scope::kGpu);
    }
}

// Calls the atomic function of a scope.
#define TMAASYNC_EMULATE_SCOPED(FUNCTION, ...)                        \
    (kScope == thread_scope_block    ? FUNCTION##_block(__VA_ARGS__)  \
     : kScope == thread_scope_system ? FUNCTION##_system(__VA_ARGS__) \
                                     : FUNCTION(__VA_ARGS__))

// The operations of atomic and atomic_ref on the object at Own::address().
template <typename Own, typename T, thread_scope kScope>
class AtomicOperations {
    static_assert(::std::is_trivially_copyable_v<T>, "an atomic object is trivially copyable");
    static_assert(
        sizeof(T) <= 8 && ::std::has_single_bit(sizeof(T)),
        "the emulator has atomic objects of 1, 2, 4 and 8 bytes"
    );
    using Word = ::std::tuple_element_t<
        ::std::bit_width(sizeof(T)) - 1,
        ::std::tuple<unsigned char, unsigned short, unsigned, unsigned long long>>;

public:
    using value_type = T;
    static constexpr bool is_always_lock_free = true;

    TMAASYNC_EMULATE_INLINE bool is_lock_free() const { return true; }

    TMAASYNC_EMULATE_INLINE T load(memory_order order = memory_order_seq_cst) const {
        if (order == memory_order_seq_cst) fence<kScope>();
        set_scope<kScope>(this->word());
        const Word word = *const_cast<const volatile Word*>(this->word());
        acquire_after<kScope>(order);
        return same_bits<T>(word);
    }

    TMAASYNC_EMULATE_INLINE void store(T value, memory_order order = memory_order_seq_cst) const {
        release_before<kScope>(order);
        set_scope<kScope>(word());
        *const_cast<volatile Word*>(word()) = same_bits<Word>(value);
        if (order == memory_order_seq_cst) fence<kScope>();
    }

    TMAASYNC_EMULATE_INLINE operator T() const { return load(); }

    TMAASYNC_EMULATE_INLINE bool compare_exchange_strong(
        T& expected, T desired, memory_order success, memory_order failure
    ) const {
        release_before<kScope>(success);
        const Word wanted = same_bits<Word>(expected), next = same_bits<Word>(desired);
        const Word old = TMAASYNC_EMULATE_SCOPED(atomicCAS, word(), wanted, next);
        acquire_after<kScope>(old == wanted ? success : failure);
        expected = same_bits<T>(old);
        return old == wanted;
    }
    TMAASYNC_EMULATE_INLINE bool compare_exchange_strong(
        T& expected, T desired, memory_order order = memory_order_seq_cst
    ) const {
        return compare_exchange_strong(expected, desired, order, order);
    }
    TMAASYNC_EMULATE_INLINE bool compare_exchange_weak(
        T& expected, T desired, memory_order success, memory_order failure
    ) const {
        return compare_exchange_strong(expected, desired, success, failure);
    }
    TMAASYNC_EMULATE_INLINE bool compare_exchange_weak(
        T& expected, T desired, memory_order order = memory_order_seq_cst
    ) const {
        return compare_exchange_strong(expected, desired, order, order);
    }

#define TMAASYNC_EMULATE_FETCH(NAME, FUNCTION)                                                 \
    TMAASYNC_EMULATE_INLINE T NAME(T value, memory_order order = memory_order_seq_cst) const { \
        release_before<kScope>(order);                                                         \
        const T old = TMAASYNC_EMULATE_SCOPED(FUNCTION, object(), value);                      \
        acquire_after<kScope>(order);                                                          \
        return old;                                                                            \
    }
    TMAASYNC_EMULATE_FETCH(exchange, atomicExch)
    TMAASYNC_EMULATE_FETCH(fetch_and, atomicAnd)
    TMAASYNC_EMULATE_FETCH(fetch_or, atomicOr)
    TMAASYNC_EMULATE_FETCH(fetch_xor, atomicXor)
    TMAASYNC_EMULATE_FETCH(fetch_min, atomicMin)
    TMAASYNC_EMULATE_FETCH(fetch_max, atomicMax)
#undef TMAASYNC_EMULATE_FETCH

    // Adds to an object. Pointers move by elements.
    template <typename D>
    TMAASYNC_EMULATE_INLINE T fetch_add(D value, memory_order order = memory_order_seq_cst) const {
        release_before<kScope>(order);
        T old;
        if constexpr (::std::is_pointer_v<T>) {
            const auto bytes = static_cast<Word>(value) * sizeof(::std::remove_pointer_t<T>);
            old = same_bits<T>(sum(word(), static_cast<Word>(bytes)));
        } else {
            old = sum(object(), static_cast<T>(value));
        }
        acquire_after<kScope>(order);
        return old;
    }
    template <typename D>
    TMAASYNC_EMULATE_INLINE T fetch_sub(D value, memory_order order = memory_order_seq_cst) const {
        if constexpr (::std::is_pointer_v<T>) {
            return fetch_add(-static_cast<::std::ptrdiff_t>(value), order);
        } else {
            return fetch_add(static_cast<T>(T{} - static_cast<T>(value)), order);
        }
    }

    TMAASYNC_EMULATE_INLINE T operator++() const { return T(fetch_add(1) + 1); }
    TMAASYNC_EMULATE_INLINE T operator++(int) const { return fetch_add(1); }
    TMAASYNC_EMULATE_INLINE T operator--() const { return T(fetch_sub(1) - 1); }
    TMAASYNC_EMULATE_INLINE T operator--(int) const { return fetch_sub(1); }
    template <typename D>
    TMAASYNC_EMULATE_INLINE T operator+=(D value) const {
        return T(fetch_add(value) + value);
    }
    template <typename D>
    TMAASYNC_EMULATE_INLINE T operator-=(D value) const {
        return T(fetch_sub(value) - value);
    }
    TMAASYNC_EMULATE_INLINE T operator&=(T value) const { return T(fetch_and(value) & value); }
    TMAASYNC_EMULATE_INLINE T operator|=(T value) const { return T(fetch_or(value) | value); }
    TMAASYNC_EMULATE_INLINE T operator^=(T value) const { return T(fetch_xor(value) ^ value); }

    TMAASYNC_EMULATE_INLINE void wait(T old, memory_order order = memory_order_seq_cst) const {
        while (same_bits<Word>(load(order)) == same_bits<Word>(old)) {}
    }
    TMAASYNC_EMULATE_INLINE void notify_one() const {}
    TMAASYNC_EMULATE_INLINE void notify_all() const {}

private:
    TMAASYNC_EMULATE_INLINE Word* word() const { return reinterpret_cast<Word*>(object()); }

    TMAASYNC_EMULATE_INLINE T* object() const { return static_cast<const Own*>(this)->address(); }

    template <typename Value>
    TMAASYNC_EMULATE_INLINE static Value sum(Value* address, Value value) {
        return TMAASYNC_EMULATE_SCOPED(atomicAdd, address, value);
    }
};

#undef TMAASYNC_EMULATE_SCOPED

}  // namespace cuda::detail

namespace cuda {

template <typename T, thread_scope kScope = thread_scope_system>
class atomic : public detail::AtomicOperations<atomic<T, kScope>, T, kScope> {
public:
    constexpr atomic() : value_{} {}
    constexpr atomic(T value) : value_(value) {}
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;

    TMAASYNC_EMULATE_INLINE T operator=(T value) {
        this->store(value);
        return value;
    }

private:
    friend class detail::AtomicOperations<atomic, T, kScope>;
    TMAASYNC_EMULATE_INLINE T* address() const { return const_cast<T*>(&value_); }

    alignas(sizeof(T)) T value_;
};

template <typename T, thread_scope kScope = thread_scope_system>
class atomic_ref : public detail::AtomicOperations<atomic_ref<T, kScope>, T, kScope> {
public:
    static constexpr ::std::size_t required_alignment = sizeof(T);

    TMAASYNC_EMULATE_INLINE explicit atomic_ref(T& value) : address_(&value) {}
    atomic_ref(const atomic_ref&) = default;
    atomic_ref& operator=(const atomic_ref&) = delete;

    TMAASYNC_EMULATE_INLINE T operator=(T value) const {
        this->store(value);
        return value;
    }

private:
    friend class detail::AtomicOperations<atomic_ref, T, kScope>;
    TMAASYNC_EMULATE_INLINE T* address() const { return address_; }

    T* address_;
};

template <thread_scope kScope = thread_scope_system>
class atomic_flag_of {
public:
    atomic_flag_of() = default;
    TMAASYNC_EMULATE_INLINE bool test(memory_order order = memory_order_seq_cst) const {
        return held_.load(order) != 0;
    }
    TMAASYNC_EMULATE_INLINE bool test_and_set(memory_order order = memory_order_seq_cst) {
        return held_.exchange(1, order) != 0;
    }
    TMAASYNC_EMULATE_INLINE void clear(memory_order order = memory_order_seq_cst) {
        held_.store(0, order);
    }
    TMAASYNC_EMULATE_INLINE void wait(bool old, memory_order order = memory_order_seq_cst) const {
        held_.wait(old, order);
    }
    TMAASYNC_EMULATE_INLINE void notify_one() const {}
    TMAASYNC_EMULATE_INLINE void notify_all() const {}

private:
    atomic<unsigned, kScope> held_;
};
using atomic_flag = atomic_flag_of<>;

TMAASYNC_EMULATE_INLINE void atomic_thread_fence(
    memory_order order, thread_scope scope = thread_scope_system
) {
    if (order == memory_order_relaxed || scope == thread_scope_thread) return;
    if (scope == thread_scope_block) return detail::fence<thread_scope_block>();
    if (scope == thread_scope_device) return detail::fence<thread_scope_device>();
    detail::fence<thread_scope_system>();
}
TMAASYNC_EMULATE_INLINE void atomic_signal_fence(memory_order) {}

}  // namespace cuda

namespace cuda::std {

template <typename T>
class atomic : public ::cuda::atomic<T, thread_scope_system> {
public:
    using ::cuda::atomic<T, thread_scope_system>::atomic;
    using ::cuda::atomic<T, thread_scope_system>::operator=;
    atomic() = default;
};

template <typename T>
class atomic_ref : public ::cuda::atomic_ref<T, thread_scope_system> {
public:
    using ::cuda::atomic_ref<T, thread_scope_system>::atomic_ref;
    using ::cuda::atomic_ref<T, thread_scope_system>::operator=;
};

using ::cuda::atomic_flag;
using ::cuda::atomic_signal_fence;
TMAASYNC_EMULATE_INLINE void atomic_thread_fence(memory_order order) {
    ::cuda::atomic_thread_fence(order);
}

}  // namespace cuda::std
