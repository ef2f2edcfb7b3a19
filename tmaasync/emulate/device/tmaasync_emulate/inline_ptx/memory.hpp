// Addresses, loads, stores, atomics and fences of inline PTX. A weak access is an ordinary access
// of the kernel. A volatile, relaxed, acquire or release access is a volatile access, with a fence
// if it orders.
#pragma once

#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/createpolicy.cuh>
#include <tmaasync_emulate/cuda.hpp>
#include <tmaasync_emulate/inline_ptx/floats.hpp>
#include <tmaasync_emulate/inline_ptx/integers.hpp>

namespace tmaasync_emulate::inline_ptx {

// --- addresses -----------------------------------------------------------------------------------

TMAASYNC_EMULATE_INLINE std::uint32_t shared_address(std::uint64_t address) {
    if (address >> 32) {
        fail(FaultKind::kGenericAddress);
    }
    return static_cast<std::uint32_t>(address);
}

// Pointer to shared memory of this CTA or, after mapa, of another CTA of the cluster.
TMAASYNC_EMULATE_INLINE std::uint8_t* shared_pointer(std::uint64_t address) {
    return tmaasync_emulate::shared_pointer(shared_address(address));
}

// An address of .shared::cta. Kernels also give one without the bits of a rank, which the chip does
// not read there.
TMAASYNC_EMULATE_INLINE std::uint32_t own_shared_address(std::uint64_t address) {
    const std::uint32_t shared = shared_address(address);
    return shared >> kRankShift ? shared : shared | current_thread().rank << kRankShift;
}

TMAASYNC_EMULATE_INLINE std::uint8_t* own_shared_pointer(std::uint64_t address) {
    return tmaasync_emulate::shared_pointer(own_shared_address(address));
}

TMAASYNC_EMULATE_INLINE std::uint8_t* generic_pointer(std::uint64_t address) {
    return reinterpret_cast<std::uint8_t*>(address);
}

TMAASYNC_EMULATE_INLINE void* map_at(std::uint64_t shared) {
    return map_in_shared(shared_address(shared));
}

// The shared address of a generic address in the cluster's shared memory, for instructions on
// shared memory.
TMAASYNC_EMULATE_INLINE std::uint32_t shared_of_generic(std::uint64_t address) {
    const std::size_t shared = __cvta_generic_to_shared(reinterpret_cast<const void*>(address));
    if (is_no_shared_address(shared)) fail(FaultKind::kGenericOutsideShared);
    return static_cast<std::uint32_t>(shared);
}

// cvta.to.shared
TMAASYNC_EMULATE_INLINE std::uint64_t converted_to_shared(std::uint64_t address) {
    return __cvta_generic_to_shared(reinterpret_cast<const void*>(address));
}

TMAASYNC_EMULATE_INLINE bool is_in_cluster(std::uint64_t address, bool own) {
    const Thread& thread = current_thread();
    const auto window = reinterpret_cast<std::uint64_t>(thread.window);
    if (own) return address - window < kWindowStride;
    const std::uint64_t first = window - std::uint64_t{thread.rank} * kWindowStride;
    return address - first < std::uint64_t{thread.ctas} * kWindowStride;
}

TMAASYNC_EMULATE_INLINE std::uint64_t generic_of_shared(std::uint64_t address) {
    return reinterpret_cast<std::uint64_t>(shared_pointer(address));
}
// An address of local memory or of a parameter. LLVM's short pointers are its low 32 bits, and the
// thread's stack lies around its frame.
TMAASYNC_EMULATE_INLINE std::uint64_t on_stack(std::uint64_t address) {
    const auto frame = reinterpret_cast<std::uint64_t>(__builtin_frame_address(0));
    return frame + static_cast<std::uint64_t>(static_cast<std::int32_t>(address - frame));
}
TMAASYNC_EMULATE_INLINE bool is_on_stack(std::uint64_t address) {
    return (address ^ stack_pointer()) < kStackBytes;
}

// mapa of a generic address, or of a shared address in a register of 64 bits.
TMAASYNC_EMULATE_INLINE std::uint64_t mapped(std::uint64_t address, std::uint32_t rank) {
    if (address >> 32) return tmaasync::ptx::mapa(static_cast<unsigned long long>(address), rank);
    return tmaasync::ptx::mapa(static_cast<std::uint32_t>(address), rank);
}

// --- order ---------------------------------------------------------------------------------------

enum class Order { kNone, kWeak, kVolatile, kRelaxed, kAcquire, kRelease, kAcq_Rel, kMmio };
enum class Reach { kNone, kCta, kCluster, kGpu, kSys };

template <Reach kReach>
TMAASYNC_EMULATE_INLINE void fence_of() {
    fence(
        kReach == Reach::kCta       ? Scope::kCta
        : kReach == Reach::kCluster ? Scope::kCluster
        : kReach == Reach::kSys     ? Scope::kSystem
                                    : Scope::kGpu
    );
}
template <Order kOrder, Reach kReach>
TMAASYNC_EMULATE_INLINE void before_access() {
    if constexpr (kOrder == Order::kRelease || kOrder == Order::kAcq_Rel) fence_of<kReach>();
}
template <Order kOrder, Reach kReach>
TMAASYNC_EMULATE_INLINE void after_access() {
    if constexpr (kOrder == Order::kAcquire || kOrder == Order::kAcq_Rel) fence_of<kReach>();
}

// --- ld and st -----------------------------------------------------------------------------------

// A volatile access has system scope. Cluster scope counts as device scope.
template <Order kOrder, Reach kReach>
TMAASYNC_EMULATE_INLINE void set_scope(const volatile void* pointer) {
    if constexpr (kOrder != Order::kVolatile && kOrder != Order::kMmio && kReach != Reach::kSys) {
        narrow_scope(pointer, kReach == Reach::kCta ? Scope::kCta : Scope::kGpu);
    }
}

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) InMemory {
    T values[kCount];
};

TMAASYNC_EMULATE_INLINE void check_aligned(const void* pointer, std::size_t bytes) {
    if (reinterpret_cast<std::uint64_t>(pointer) % bytes == 0) return;
    fail(FaultKind::kAlignment);
}

template <Order kOrder, Reach kReach, typename T, typename... Words>
TMAASYNC_EMULATE_INLINE void load(const std::uint8_t* pointer, Words&... targets) {
    constexpr int kCount = sizeof...(Words);
    check_aligned(pointer, sizeof(T) * kCount);
    InMemory<T, kCount> read;
    if constexpr (kOrder == Order::kNone || kOrder == Order::kWeak) {
        read = *reinterpret_cast<const InMemory<T, kCount>*>(pointer);
    } else {
        for (int i = 0; i < kCount; ++i) {
            set_scope<kOrder, kReach>(&reinterpret_cast<const volatile T*>(pointer)[i]);
            read.values[i] = reinterpret_cast<const volatile T*>(pointer)[i];
        }
        after_access<kOrder, kReach>();
    }
    int i = 0;
    (set<T>(targets, read.values[i++]), ...);
}

// ld.global.nc reads data that the whole launch only reads.
template <typename T, typename... Words>
TMAASYNC_EMULATE_INLINE void load_only_read(const std::uint8_t* pointer, Words&... targets) {
    check_only_read(pointer, sizeof(T) * sizeof...(Words));
    load<Order::kNone, Reach::kNone, T>(pointer, targets...);
}

template <Order kOrder, Reach kReach, typename T, typename... Values>
TMAASYNC_EMULATE_INLINE void store(std::uint8_t* pointer, Values... values) {
    constexpr int kCount = sizeof...(Values);
    check_aligned(pointer, sizeof(T) * kCount);
    const InMemory<T, kCount> written{{static_cast<T>(values)...}};
    if constexpr (kOrder == Order::kNone || kOrder == Order::kWeak) {
        *reinterpret_cast<InMemory<T, kCount>*>(pointer) = written;
    } else {
        before_access<kOrder, kReach>();
        for (int i = 0; i < kCount; ++i) {
            set_scope<kOrder, kReach>(&reinterpret_cast<volatile T*>(pointer)[i]);
            reinterpret_cast<volatile T*>(pointer)[i] = written.values[i];
        }
    }
}

template <typename T, typename... Values>
TMAASYNC_EMULATE_INLINE InMemory<T, sizeof...(Values)> listed(Values... values) {
    return {{values...}};
}

// --- atom and red --------------------------------------------------------------------------------

using tmaasync_emulate::AtomicOp;

template <AtomicOp kOp, typename T>
T changed_by(T old, T value) {
    using enum AtomicOp;
    if constexpr (kOp == kExch) return value;
    if constexpr (kOp == kMin || kOp == kMax) {
        if constexpr (kIsFloat<T>) {
            return extreme<kOp == kMax, false, false, false>(old, value);
        } else {
            return (value < old) == (kOp == kMin) ? value : old;
        }
    }
    if constexpr (kOp == kAdd) {
        if constexpr (kIsFloat<T>) {
            return sum<Round::kRn, false, false>(old, value);
        } else {
            return whole_sum(old, value);
        }
    }
    if constexpr (std::is_integral_v<T>) {
        if constexpr (kOp == kAnd) return old & value;
        if constexpr (kOp == kOr) return old | value;
        if constexpr (kOp == kXor) return old ^ value;
        if constexpr (kOp == kInc) return old >= value ? 0 : old + 1;
        if constexpr (kOp == kDec) return old == 0 || old > value ? value : old - 1;
    }
}
template <AtomicOp kOp, typename T>
Pair<T> changed_by(Pair<T> old, Pair<T> value) {
    return {changed_by<kOp>(old.low, value.low), changed_by<kOp>(old.high, value.high)};
}

template <Reach kReach, typename T, typename Change>
TMAASYNC_EMULATE_INLINE T changed_in_memory(
    std::uint8_t* pointer,
    Change change,
    OldValue use = OldValue::kUsed,
    std::uint64_t operation = 0
) {
    using Word = Bits<sizeof(T)>;
    const Word old = change_atomically(
        reinterpret_cast<Word*>(pointer),
        [&](Word held) { return std::bit_cast<Word>(change(std::bit_cast<T>(held))); },
        {use,
         kReach == Reach::kSys   ? Scope::kSystem
         : kReach == Reach::kCta ? Scope::kCta
                                 : Scope::kGpu,
         operation}
    );
    return std::bit_cast<T>(old);
}

template <AtomicOp kOp, Order kOrder, Reach kReach, typename T>
TMAASYNC_EMULATE_INLINE T atomic(std::uint8_t* pointer, std::type_identity_t<T> value) {
    before_access<kOrder, kReach>();
    const T old = changed_in_memory<kReach, T>(
        pointer, [=](T held) { return changed_by<kOp>(held, value); },
        kOp == AtomicOp::kExch ? OldValue::kUnused : OldValue::kUsed
    );
    after_access<kOrder, kReach>();
    return old;
}
template <Order kOrder, Reach kReach, typename T>
TMAASYNC_EMULATE_INLINE T compare_and_swap(
    std::uint8_t* pointer, std::type_identity_t<T> expected, std::type_identity_t<T> value
) {
    before_access<kOrder, kReach>();
    const T old = changed_in_memory<kReach, T>(
        pointer, [=](T held) { return held == expected ? value : held; }, OldValue::kCompared
    );
    after_access<kOrder, kReach>();
    return old;
}

// red. A vector is reduced one element after the other, as on the chip.
template <AtomicOp kOp, Order kOrder, Reach kReach, typename T, typename... Values>
TMAASYNC_EMULATE_INLINE void reduce(std::uint8_t* pointer, Values... values) {
    std::size_t offset = 0;
    before_access<kOrder, kReach>();
    (
        [&] {
            const T added = values;
            changed_in_memory<kReach, T>(
                pointer + offset, [=](T held) { return changed_by<kOp>(held, added); },
                OldValue::kNotReturned, commuting<kOp, T>()
            );
            offset += sizeof(T);
        }(),
        ...);
    after_access<kOrder, kReach>();
}
template <AtomicOp kOp, Order kOrder, Reach kReach, typename T, typename... Words>
TMAASYNC_EMULATE_INLINE void atomic_vector(
    std::uint8_t* pointer, const InMemory<T, sizeof...(Words)>& values, Words&... olds
) {
    std::size_t index = 0;
    before_access<kOrder, kReach>();
    (
        [&] {
            const T added = values.values[index];
            set<T>(olds, changed_in_memory<kReach, T>(pointer + sizeof(T) * index, [=](T held) {
                       return changed_by<kOp>(held, added);
                   }));
            ++index;
        }(),
        ...);
    after_access<kOrder, kReach>();
}

// --- cache hints, which are ignored ---

template <typename T>
TMAASYNC_EMULATE_INLINE void unused(const T&) {}

inline std::uint64_t policy_of(const char* priority) {
    using namespace tmaasync::ptx;
    if (std::strcmp(priority, "evict_first") == 0) return createpolicy_evict_first();
    if (std::strcmp(priority, "evict_last") == 0) return createpolicy_evict_last();
    return createpolicy_evict_normal();
}

}  // namespace tmaasync_emulate::inline_ptx
