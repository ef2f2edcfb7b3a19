// Lanes of a warp that act together, by their mask.
#pragma once

#include <cuda/detail/standard_names.hpp>
#include <tmaasync_emulate/calls.hpp>

namespace cooperative_groups::detail {

TMAASYNC_EMULATE_INLINE unsigned lane() {
    return tmaasync_emulate::current_thread().lane;
}

TMAASYNC_EMULATE_INLINE unsigned rank_of(uint3 at, uint3 size) {
    return at.x + size.x * (at.y + size.y * at.z);
}
TMAASYNC_EMULATE_INLINE unsigned count_of(uint3 size) {
    return size.x * size.y * size.z;
}

// The lane with this rank among the lanes of the mask.
TMAASYNC_EMULATE_INLINE unsigned lane_of_rank(unsigned mask, unsigned rank) {
    for (; rank > 0; --rank) mask &= mask - 1;
    return static_cast<unsigned>(__builtin_ctz(mask));
}
TMAASYNC_EMULATE_INLINE unsigned rank_of_lane(unsigned mask, unsigned lane) {
    return static_cast<unsigned>(__builtin_popcount(mask & ((1u << lane) - 1)));
}

// The bits of a lane mask at the group's lanes, packed together.
TMAASYNC_EMULATE_INLINE unsigned packed(unsigned lanes, unsigned group) {
    unsigned bits = 0;
    for (unsigned rank = 0; group != 0; ++rank, group &= group - 1) {
        bits |= (lanes >> __builtin_ctz(group) & 1) << rank;
    }
    return bits;
}

// Moves a value of up to 32 bytes, 8 at a time.
template <typename T, typename Shuffle>
TMAASYNC_EMULATE_INLINE T moved(const T& value, Shuffle shuffle) {
    static_assert(::std::is_trivially_copyable_v<T>, "shuffles move trivially copyable types");
    static_assert(sizeof(T) <= 32, "shuffles move up to 32 bytes");
    if constexpr (sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0) {
        return shuffle(value);
    } else {
        unsigned long long words[(sizeof(T) + 7) / 8] = {};
        __builtin_memcpy(words, &value, sizeof(T));
        for (unsigned long long& word : words) word = shuffle(word);
        T result;
        __builtin_memcpy(&result, words, sizeof(T));
        return result;
    }
}

}  // namespace cooperative_groups::detail
