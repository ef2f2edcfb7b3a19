#pragma once

#include <tmaasync/cluster.cuh>
#include <tmaasync/element_bits.cuh>
#include <tmaasync/instrument/trap.cuh>
#include <tmaasync/operands/copies.cuh>

// Argument checks of debug builds: where the chip would hang, fault without a reason or write to
// a wrong address, the kernel ends with a line that reads "<argument> is <value>; <rule> <limit>."
// In other builds every function here is nothing.
namespace tmaasync {

// Kernel(debug=True) on the host, or TMAASYNC_DEBUG=1 in its environment.
#if defined(TMAASYNC_DEBUG) && TMAASYNC_DEBUG
constexpr bool kIsDebug = true;
#else
constexpr bool kIsDebug = false;
#endif

template <bool kChecks = kIsDebug>
__device__ __forceinline__ void check(
    bool holds, const char* argument, i64 value, const char* rule, i64 limit
) {
    if constexpr (kChecks) {
        if (!holds) instrument::trap_with(argument, value, false, rule, limit);
    }
}

template <bool kChecks = kIsDebug>
__device__ __forceinline__ void check_range(const char* argument, i64 value, i64 low, i64 high) {
    check<kChecks>(value >= low, argument, value, "it must be at least", low);
    check<kChecks>(value <= high, argument, value, "it must be at most", high);
}

__device__ __forceinline__ void check_index(const char* argument, i64 value, i64 count) {
    check(value >= 0, argument, value, "it must be at least", 0);
    check(value < count, argument, value, "it must be below", count);
}

__device__ __forceinline__ void check_multiple(const char* argument, i64 value, i64 granule) {
    check(value % granule == 0, argument, value, "it must be a multiple of", granule);
}

__device__ __forceinline__ void check_address(const char* argument, u64 address, u32 granule) {
    if constexpr (kIsDebug) {
        if (address % granule == 0) return;
        instrument::trap_with(
            argument, static_cast<i64>(address), true, "it must be a multiple of", granule
        );
    }
}

// --- copies --------------------------------------------------------------------------------------

constexpr int kGranuleBytes = 16;

__device__ __forceinline__ void check_cta_rank(u32 cta_rank) {
    if constexpr (kIsDebug) check_index("cta_rank", cta_rank, blocks_in_cluster());
}

__device__ __forceinline__ void check_cta_mask(u32 cta_mask) {
    if constexpr (kIsDebug) {
        const u32 ctas = blocks_in_cluster();
        const char* const rule =
            "it must name CTAs of the cluster and no others, of which there are";
        check(cta_mask != 0 && cta_mask >> ctas == 0, "cta_mask", cta_mask, rule, ctas);
    }
}

// Check the start of a copy of elements T, innermost first.
template <typename T, int kRank>
__device__ __forceinline__ void check_start(const ptx::Coordinates<kRank>& at) {
    constexpr int kElements = ElementBits<T>::kStart;
    const char* const rule = "copies start at 16 bytes, so it must be a multiple of";
    check(at.values[0] % kElements == 0, "at[0]", at.values[0], rule, kElements);
}

// Check the start of a store or reduction.
template <typename T, int kRank>
__device__ __forceinline__ void check_store_start(const ptx::Coordinates<kRank>& at) {
    if constexpr (kIsDebug) {
        constexpr const char* kNames[] = {"at[0]", "at[1]", "at[2]", "at[3]", "at[4]"};
        for (int dim = 0; dim < kRank; ++dim) {
            const char* const rule = "stores start inside the array or after it, at least at";
            check(at.values[dim] >= 0, kNames[dim], at.values[dim], rule, 0);
        }
        check_start<T>(at);
    }
}

}  // namespace tmaasync
