// mbarriers and asynchronous copies of inline PTX that need more than a call of the runtime.
#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync_emulate/inline_ptx/memory.hpp>

namespace tmaasync_emulate::inline_ptx {

// --- mbarriers -----------------------------------------------------------------------------------

TMAASYNC_EMULATE_INLINE constexpr tmaasync_emulate::Order arrival(Order order) {
    return order == Order::kRelaxed ? tmaasync_emulate::Order::kRelaxed
                                    : tmaasync_emulate::Order::kOrdered;
}

// --- boxes ---------------------------------------------------------------------------------------

// The coordinates of a tensor copy, and the offsets of an im2col copy.
template <int kRank>
struct At {
    std::int32_t at[kRank];
    std::uint16_t offsets[3] = {};
};

template <int kRank>
TMAASYNC_EMULATE_INLINE Box box_of(const std::uint8_t* map, const At<kRank>& at) {
    return {map, kRank, at.at};
}
template <int kRank>
TMAASYNC_EMULATE_INLINE Box
box_with_offsets(const std::uint8_t* map, const At<kRank>& at, BoxMode mode) {
    return {map, kRank, at.at, at.offsets, mode};
}
// A column and four rows.
TMAASYNC_EMULATE_INLINE Box box_of_rows(const std::uint8_t* map, const At<5>& at) {
    return {map, 2, at.at, nullptr, BoxMode::kRows};
}

// --- tensor maps ---------------------------------------------------------------------------------

template <int kBytes>
TMAASYNC_EMULATE_INLINE constexpr void check_map_bytes() {
    static_assert(kBytes == 128, "fences and copies of a tensor map take 128 bytes");
}

// --- reductions ----------------------------------------------------------------------------------

template <tmaasync::ptx::ReduceOp kOp, tmaasync::ptx::ElementType kType>
TMAASYNC_EMULATE_INLINE void reduce_in_global(
    void* global, std::uint32_t shared, std::uint32_t bytes
) {
    static_assert(
        tmaasync::ptx::reduces_in_global(kOp, kType),
        "sm_90 lacks this reduction into global memory"
    );
    bulk_reduce({static_cast<int>(kOp), static_cast<int>(kType)}, global, shared, bytes);
}
template <tmaasync::ptx::ReduceOp kOp, tmaasync::ptx::ElementType kType>
TMAASYNC_EMULATE_INLINE void reduce_in_cluster(
    std::uint32_t remote, std::uint32_t shared, std::uint32_t bytes, std::uint32_t barrier
) {
    static_assert(
        tmaasync::ptx::reduces_in_shared(kOp, kType),
        "sm_90 lacks this reduction into shared memory"
    );
    const Reduction reduction{static_cast<int>(kOp), static_cast<int>(kType)};
    bulk_push(remote, shared, bytes, barrier, &reduction);
}

// --- cluster launch control ---

// The words of a response.
struct Response {
    std::uint32_t words[4];

    explicit Response(unsigned __int128 bits) {
        for (int i = 0; i < 4; ++i) words[i] = static_cast<std::uint32_t>(bits >> 32 * i);
    }
};

// The ISA leaves the fourth word undefined.
template <typename A, typename B, typename C, typename D>
TMAASYNC_EMULATE_INLINE void first_ctaid_of(const Response& response, A& x, B& y, C& z, D& rest) {
    const uint3 first = first_ctaid(response.words);
    set<std::uint32_t>(x, first.x);
    set<std::uint32_t>(y, first.y);
    set<std::uint32_t>(z, first.z);
    set<std::uint32_t>(rest, 0);
}

// --- st.bulk ---

// Fills shared memory with zeros, 8 bytes at a time.
template <int kValue>
TMAASYNC_EMULATE_INLINE void store_bulk(std::uint8_t* pointer, std::uint64_t bytes) {
    static_assert(kValue == 0, "st.bulk fills with zeros");
    check_aligned(pointer, 8);
    if (bytes % 8) fail(FaultKind::kStBulkSize);
    for (std::uint64_t at = 0; at < bytes; at += 8) {
        store<Order::kNone, Reach::kNone, std::uint64_t>(pointer + at, std::uint64_t{0});
    }
}

// --- st.async and red.async ----------------------------------------------------------------------

// Stores to another CTA's shared memory, whose mbarrier counts the bytes.
template <typename T, typename... Values>
TMAASYNC_EMULATE_INLINE void store_async(
    std::uint32_t remote, std::uint32_t barrier, Values... values
) {
    async_store_begin(barrier);
    store<Order::kNone, Reach::kNone, T>(shared_pointer(remote), values...);
    async_store_end(barrier, sizeof(T) * sizeof...(Values));
}
template <AtomicOp kOp, typename T>
TMAASYNC_EMULATE_INLINE void reduce_async(
    std::uint32_t remote, std::uint32_t barrier, std::type_identity_t<T> value
) {
    async_store_begin(barrier);
    reduce<kOp, Order::kRelaxed, Reach::kCluster, T>(shared_pointer(remote), value);
    async_store_end(barrier, sizeof(T));
}

}  // namespace tmaasync_emulate::inline_ptx
