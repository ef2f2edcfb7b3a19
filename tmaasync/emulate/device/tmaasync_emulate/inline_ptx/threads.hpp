// Lanes, barriers and special registers of inline PTX.
#pragma once

#include <ctime>
#include <tmaasync_emulate/cuda.hpp>
#include <tmaasync_emulate/inline_ptx/floats.hpp>
#include <tmaasync_emulate/inline_ptx/registers.hpp>

namespace tmaasync_emulate::inline_ptx {

// --- special registers ---------------------------------------------------------------------------

TMAASYNC_EMULATE_INLINE std::uint32_t thread_in_block() {
    const Thread& thread = current_thread();
    return (thread.thread.z * thread.block_dim.y + thread.thread.y) * thread.block_dim.x +
           thread.thread.x;
}
TMAASYNC_EMULATE_INLINE std::uint32_t block_in_grid() {
    const Thread& thread = current_thread();
    return (thread.block.z * thread.grid_dim.y + thread.block.y) * thread.grid_dim.x +
           thread.block.x;
}

// %nwarpid: the number of warps that fit on an SM, whatever the block's size (read on an H200).
constexpr std::uint32_t kWarpsOfMultiprocessor = TMAASYNC_EMULATE_SM_WARPS;

TMAASYNC_EMULATE_INLINE uint3 cluster_sides() {
    return launch_shape().cluster;
}
TMAASYNC_EMULATE_INLINE uint3 block_in_cluster() {
    const uint3 sides = cluster_sides(), block = current_thread().block;
    return {block.x % sides.x, block.y % sides.y, block.z % sides.z};
}
TMAASYNC_EMULATE_INLINE uint3 cluster_in_grid() {
    const uint3 sides = cluster_sides(), block = current_thread().block;
    return {block.x / sides.x, block.y / sides.y, block.z / sides.z};
}
TMAASYNC_EMULATE_INLINE uint3 clusters_of_grid() {
    const uint3 sides = cluster_sides(), grid = current_thread().grid_dim;
    return {grid.x / sides.x, grid.y / sides.y, grid.z / sides.z};
}

// The blocks of the grid are assigned to the SMs one after the other.
TMAASYNC_EMULATE_INLINE std::uint32_t sm_of_block() {
    return block_in_grid() % launch_shape().sms;
}

inline std::uint64_t nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

// --- lanes ---------------------------------------------------------------------------------------

// shfl.sync: computes the source lane from b and c as the PTX ISA does.
template <ShuffleKind kKind>
TMAASYNC_EMULATE_INLINE std::uint32_t shuffled(
    std::uint32_t value, std::uint32_t b, std::uint32_t c, std::uint32_t mask, bool& is_inside
) {
    const auto lane = static_cast<int>(current_thread().lane);
    const int by = static_cast<int>(b & 31), clamp = static_cast<int>(c & 31);
    const int segment = static_cast<int>(c >> 8 & 31);
    const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    int source = (first & segment) | (by & ~segment);
    if (kKind == ShuffleKind::kUp) source = lane - by;
    if (kKind == ShuffleKind::kDown) source = lane + by;
    if (kKind == ShuffleKind::kXor) source = lane ^ by;
    is_inside = kKind == ShuffleKind::kUp ? source >= last : source <= last;
    if (!is_inside) source = lane;
    return static_cast<std::uint32_t>(
        shuffle(mask, value, static_cast<std::uint32_t>(source), kKind)
    );
}

TMAASYNC_EMULATE_INLINE bool is_uniform(bool value, std::uint32_t mask) {
    const std::uint32_t lanes = ballot(mask, value), all = ballot(mask, true);
    return lanes == 0 || lanes == all;
}

// redux.sync of floats: NaNs do not count, except with .NaN.
template <bool kIsMax, bool kAbs, bool kKeepsNan>
TMAASYNC_EMULATE_INLINE float reduced_floats(float value, std::uint32_t mask) {
    if constexpr (kAbs) value = std::fabs(value);
    const auto join = [](float a, float b) {
        return extreme<kIsMax, false, kKeepsNan, false>(a, b);
    };
    return canonical(reduced(mask, value, join));
}

TMAASYNC_EMULATE_INLINE void elect_one(std::uint32_t& leader, bool& is_leader, std::uint32_t mask) {
    if (mask != 0xffffffff) {
        const std::uint32_t lanes = ballot(mask, true);
        leader = static_cast<std::uint32_t>(std::countr_zero(lanes));
        is_leader = current_thread().lane == leader;
        return;
    }
    is_leader = elect();
    leader = static_cast<std::uint32_t>(std::countr_zero(*current_thread().live_lanes));
}

TMAASYNC_EMULATE_INLINE void set_registers(bool claims, std::uint32_t registers) {
    if (registers < 24 || registers > 256 || registers % 8) {
        fail(FaultKind::kRegisterCount);
    }
    set_max_registers(claims, registers);
}

// --- barriers of the CTA -------------------------------------------------------------------------

enum class Vote { kPopc, kAnd, kOr };

TMAASYNC_EMULATE_INLINE std::uint32_t reduced_at_barrier(
    Vote vote, std::uint32_t barrier, std::uint32_t threads, bool value
) {
    if (barrier || threads) {
        fail(FaultKind::kPartialReduction);
    }
    const std::uint32_t count = count_in_block(vote == Vote::kAnd ? !value : value, 0);
    return vote == Vote::kPopc ? count : (vote == Vote::kAnd) == (count == 0);
}

}  // namespace tmaasync_emulate::inline_ptx
