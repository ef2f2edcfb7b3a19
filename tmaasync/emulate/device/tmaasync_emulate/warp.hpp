// Functions that threads execute together: CUDA C++ Programming Guide, "Synchronization Functions",
// "Warp Vote Functions", "Warp Match Functions", "Warp Reduce Functions" and "Warp Shuffle
// Functions".
#pragma once

#include <cstdint>
#include <cstring>
#include <tmaasync_emulate/calls.hpp>

// --- the block -----------------------------------------------------------------------------------

// The default argument is the line of the kernel's call.
inline void __syncthreads(unsigned line = __builtin_LINE()) {
    tmaasync_emulate::sync_block(line);
}

inline int __syncthreads_count(int predicate, unsigned line = __builtin_LINE()) {
    return static_cast<int>(tmaasync_emulate::count_in_block(predicate != 0, line));
}
inline int __syncthreads_and(int predicate, unsigned line = __builtin_LINE()) {
    return tmaasync_emulate::count_in_block(predicate == 0, line) == 0;
}
inline int __syncthreads_or(int predicate, unsigned line = __builtin_LINE()) {
    return tmaasync_emulate::count_in_block(predicate != 0, line) != 0;
}

inline void __syncwarp(unsigned mask = 0xffffffff) {
    tmaasync_emulate::sync_warp(mask);
}
inline void __barrier_sync(unsigned number) {
    tmaasync_emulate::named_barrier_sync(number, 0);
}
inline void __barrier_sync_count(unsigned number, unsigned threads) {
    tmaasync_emulate::named_barrier_sync(number, threads);
}

// --- shuffles ------------------------------------------------------------------------------------

namespace tmaasync_emulate {

template <typename T>
TMAASYNC_EMULATE_INLINE T
shuffle_value(uint32_t mask, T value, uint32_t source, bool is_inside, ShuffleKind kind) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    uint64_t word = 0;
    __builtin_memcpy(&word, &value, sizeof(T));
    word = shuffle(mask, word, is_inside ? source : current_thread().lane, kind);
    __builtin_memcpy(&value, &word, sizeof(T));
    return value;
}

}  // namespace tmaasync_emulate

template <typename T>
TMAASYNC_EMULATE_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int lane = static_cast<int>(tmaasync_emulate::current_thread().lane);
    const int first = lane / width * width;
    return tmaasync_emulate::shuffle_value(
        mask, value, static_cast<unsigned>(first + (source & (width - 1))), true,
        tmaasync_emulate::ShuffleKind::kIndex
    );
}

// shfl.sync takes the lowest five bits of a distance.
template <typename T>
TMAASYNC_EMULATE_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = static_cast<int>(tmaasync_emulate::current_thread().lane);
    const int source = lane - static_cast<int>(delta & 31);
    const bool is_inside = source >= lane / width * width;
    return tmaasync_emulate::shuffle_value(
        mask, value, static_cast<unsigned>(source), is_inside, tmaasync_emulate::ShuffleKind::kUp
    );
}

template <typename T>
TMAASYNC_EMULATE_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = static_cast<int>(tmaasync_emulate::current_thread().lane);
    const int source = lane + static_cast<int>(delta & 31);
    const bool is_inside = source < lane / width * width + width;
    return tmaasync_emulate::shuffle_value(
        mask, value, static_cast<unsigned>(source), is_inside, tmaasync_emulate::ShuffleKind::kDown
    );
}

template <typename T>
TMAASYNC_EMULATE_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    const int lane = static_cast<int>(tmaasync_emulate::current_thread().lane);
    const int source = lane ^ (lanes & 31);
    const bool is_inside = source < lane / width * width + width;
    return tmaasync_emulate::shuffle_value(
        mask, value, static_cast<unsigned>(source), is_inside, tmaasync_emulate::ShuffleKind::kXor
    );
}

TMAASYNC_EMULATE_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
    return tmaasync_emulate::ballot(mask, predicate != 0);
}
TMAASYNC_EMULATE_INLINE int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
TMAASYNC_EMULATE_INLINE int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, !predicate) == 0;
}
TMAASYNC_EMULATE_INLINE int __uni_sync(unsigned mask, int predicate) {
    const bool is_none = __ballot_sync(mask, predicate) == 0;
    const bool is_every = __ballot_sync(mask, !predicate) == 0;
    return is_none || is_every;
}

// The lanes of the warp that execute this call together.
TMAASYNC_EMULATE_INLINE unsigned __activemask() {
    return tmaasync_emulate::active_lanes();
}

// --- matches and reductions ----------------------------------------------------------------------

namespace tmaasync_emulate {

// The values of the live lanes of a mask.
template <typename T>
struct HeldByLanes {
    uint32_t lanes;
    T values[32];

    bool has(uint32_t lane) const { return lanes >> lane & 1; }
};

template <typename T>
TMAASYNC_EMULATE_INLINE auto gathered(const char* instruction, uint32_t mask, T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "values of 4 or 8 bytes");
    uint64_t word = 0, words[32];
    __builtin_memcpy(&word, &value, sizeof(T));
    HeldByLanes<T> held;
    held.lanes = gather(instruction, mask, word, words);
    for (int lane = 0; lane < 32; ++lane)
        __builtin_memcpy(&held.values[lane], &words[lane], sizeof(T));
    return held;
}

template <typename T>
TMAASYNC_EMULATE_INLINE uint32_t
lanes_with_the_same(const char* instruction, uint32_t mask, T value, uint32_t* taking_part) {
    const HeldByLanes<T> held = gathered(instruction, mask, value);
    uint32_t same = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!held.has(lane)) continue;
        same |= uint32_t{std::memcmp(&held.values[lane], &value, sizeof(T)) == 0} << lane;
    }
    *taking_part = held.lanes;
    return same;
}

template <typename T, typename Join>
TMAASYNC_EMULATE_INLINE auto reduced(uint32_t mask, T value, Join join) {
    const HeldByLanes<T> held = gathered("redux.sync", mask, value);
    bool is_first = true;
    T result{};
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (!held.has(lane)) continue;
        result = is_first ? held.values[lane] : join(result, held.values[lane]);
        is_first = false;
    }
    return result;
}

}  // namespace tmaasync_emulate

template <typename T>
TMAASYNC_EMULATE_INLINE unsigned __match_any_sync(unsigned mask, T value) {
    uint32_t lanes;
    return tmaasync_emulate::lanes_with_the_same("match.any.sync", mask, value, &lanes);
}
template <typename T>
TMAASYNC_EMULATE_INLINE unsigned __match_all_sync(unsigned mask, T value, int* predicate) {
    uint32_t lanes;
    *predicate =
        tmaasync_emulate::lanes_with_the_same("match.all.sync", mask, value, &lanes) == lanes;
    return *predicate ? mask : 0;
}

#define TMAASYNC_EMULATE_REDUCE(NAME, TYPE, RESULT)                                  \
    TMAASYNC_EMULATE_INLINE TYPE __reduce_##NAME##_sync(unsigned mask, TYPE value) { \
        return tmaasync_emulate::reduced(mask, value, [](TYPE a, TYPE b) -> TYPE {   \
            return RESULT;                                                           \
        });                                                                          \
    }
TMAASYNC_EMULATE_REDUCE(add, unsigned, a + b)
TMAASYNC_EMULATE_REDUCE(
    add, int, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b))
)
TMAASYNC_EMULATE_REDUCE(min, unsigned, b < a ? b : a)
TMAASYNC_EMULATE_REDUCE(min, int, b < a ? b : a)
TMAASYNC_EMULATE_REDUCE(max, unsigned, a < b ? b : a)
TMAASYNC_EMULATE_REDUCE(max, int, a < b ? b : a)
TMAASYNC_EMULATE_REDUCE(and, unsigned, a& b)
TMAASYNC_EMULATE_REDUCE(or, unsigned, a | b)
TMAASYNC_EMULATE_REDUCE(xor, unsigned, a ^ b)
