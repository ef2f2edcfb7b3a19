// Groups of lanes: thread_block_tile and coalesced_group, and the partitions that make them.
#pragma once

#include <cooperative_groups/detail/blocks.hpp>
#include <cooperative_groups/detail/lanes.hpp>
#include <type_traits>

namespace cooperative_groups {

// kSize consecutive lanes of a warp. Its rank within its parent is fixed when it is made.
template <unsigned kSize, typename Parent = void>
class thread_block_tile {
    static_assert(
        kSize == 1 || kSize == 2 || kSize == 4 || kSize == 8 || kSize == 16 || kSize == 32,
        "on the emulator a tile has 1, 2, 4, 8, 16 or 32 threads: block_tile_memory and tiles of "
        "several warps are not supported"
    );

public:
    TMAASYNC_EMULATE_INLINE thread_block_tile(unsigned meta_rank, unsigned meta_size)
        : meta_rank_(meta_rank), meta_size_(meta_size) {}
    template <typename Other>
    TMAASYNC_EMULATE_INLINE thread_block_tile(const thread_block_tile<kSize, Other>& other)
        : meta_rank_(other.meta_group_rank()), meta_size_(other.meta_group_size()) {}

    TMAASYNC_EMULATE_INLINE operator thread_group() const {
        return {thread_group::Kind::kLanes, mask(), kSize, thread_rank()};
    }

    TMAASYNC_EMULATE_INLINE static unsigned size() { return kSize; }
    TMAASYNC_EMULATE_INLINE static unsigned num_threads() { return kSize; }
    TMAASYNC_EMULATE_INLINE static unsigned thread_rank() { return detail::lane() % kSize; }
    TMAASYNC_EMULATE_INLINE unsigned meta_group_rank() const { return meta_rank_; }
    TMAASYNC_EMULATE_INLINE unsigned meta_group_size() const { return meta_size_; }

    TMAASYNC_EMULATE_INLINE static void sync() { __syncwarp(mask()); }

    template <typename T>
    TMAASYNC_EMULATE_INLINE T shfl(T value, int rank) const {
        return detail::moved(value, [=](auto word) {
            return __shfl_sync(mask(), word, rank, int{kSize});
        });
    }
    template <typename T>
    TMAASYNC_EMULATE_INLINE T shfl_up(T value, unsigned delta) const {
        return detail::moved(value, [=](auto word) {
            return __shfl_up_sync(mask(), word, delta, int{kSize});
        });
    }
    template <typename T>
    TMAASYNC_EMULATE_INLINE T shfl_down(T value, unsigned delta) const {
        return detail::moved(value, [=](auto word) {
            return __shfl_down_sync(mask(), word, delta, int{kSize});
        });
    }
    template <typename T>
    TMAASYNC_EMULATE_INLINE T shfl_xor(T value, unsigned lanes) const {
        return detail::moved(value, [=](auto word) {
            return __shfl_xor_sync(mask(), word, static_cast<int>(lanes), int{kSize});
        });
    }

    TMAASYNC_EMULATE_INLINE int any(int predicate) const { return __any_sync(mask(), predicate); }
    TMAASYNC_EMULATE_INLINE int all(int predicate) const { return __all_sync(mask(), predicate); }
    TMAASYNC_EMULATE_INLINE unsigned ballot(int predicate) const {
        return __ballot_sync(mask(), predicate) >> first_lane();
    }
    template <typename T>
    TMAASYNC_EMULATE_INLINE unsigned match_any(T value) const {
        return __match_any_sync(mask(), value) >> first_lane();
    }
    template <typename T>
    TMAASYNC_EMULATE_INLINE unsigned match_all(T value, int& predicate) const {
        return __match_all_sync(mask(), value, &predicate) >> first_lane();
    }

    // This function is not in CUDA's interface.
    TMAASYNC_EMULATE_INLINE static unsigned mask() {
        return (0xffffffffu >> (32 - kSize)) << first_lane();
    }

private:
    TMAASYNC_EMULATE_INLINE static unsigned first_lane() { return detail::lane() / kSize * kSize; }

    unsigned meta_rank_;
    unsigned meta_size_;
};

// Lanes of a warp that execute the same code, in the order of their numbers.
class coalesced_group {
public:
    TMAASYNC_EMULATE_INLINE explicit coalesced_group(
        unsigned mask, unsigned meta_rank = 0, unsigned meta_size = 1
    )
        : mask_(mask), meta_rank_(meta_rank), meta_size_(meta_size) {}

    TMAASYNC_EMULATE_INLINE operator thread_group() const {
        return {thread_group::Kind::kLanes, mask_, size(), thread_rank()};
    }

    TMAASYNC_EMULATE_INLINE unsigned size() const {
        return static_cast<unsigned>(__builtin_popcount(mask_));
    }
    TMAASYNC_EMULATE_INLINE unsigned num_threads() const { return size(); }
    TMAASYNC_EMULATE_INLINE unsigned thread_rank() const {
        return detail::rank_of_lane(mask_, detail::lane());
    }
    TMAASYNC_EMULATE_INLINE unsigned meta_group_rank() const { return meta_rank_; }
    TMAASYNC_EMULATE_INLINE unsigned meta_group_size() const { return meta_size_; }

    TMAASYNC_EMULATE_INLINE void sync() const { __syncwarp(mask_); }

    template <typename T>
    TMAASYNC_EMULATE_INLINE T shfl(T value, unsigned rank) const {
        return from_rank(value, rank % size());
    }
    // A thread beyond the group gets its own value.
    template <typename T>
    TMAASYNC_EMULATE_INLINE T shfl_up(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return from_rank(value, rank < delta ? rank : rank - delta);
    }
    template <typename T>
    TMAASYNC_EMULATE_INLINE T shfl_down(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return from_rank(value, rank + delta < size() ? rank + delta : rank);
    }

    TMAASYNC_EMULATE_INLINE int any(int predicate) const { return __any_sync(mask_, predicate); }
    TMAASYNC_EMULATE_INLINE int all(int predicate) const { return __all_sync(mask_, predicate); }
    TMAASYNC_EMULATE_INLINE unsigned ballot(int predicate) const {
        return detail::packed(__ballot_sync(mask_, predicate), mask_);
    }
    template <typename T>
    TMAASYNC_EMULATE_INLINE unsigned match_any(T value) const {
        return detail::packed(__match_any_sync(mask_, value), mask_);
    }
    template <typename T>
    TMAASYNC_EMULATE_INLINE unsigned match_all(T value, int& predicate) const {
        return detail::packed(__match_all_sync(mask_, value, &predicate), mask_);
    }

    // This function is not in CUDA's interface.
    TMAASYNC_EMULATE_INLINE unsigned mask() const { return mask_; }

private:
    template <typename T>
    TMAASYNC_EMULATE_INLINE T from_rank(const T& value, unsigned rank) const {
        const int lane = static_cast<int>(detail::lane_of_rank(mask_, rank));
        return detail::moved(value, [=, this](auto word) {
            return __shfl_sync(mask_, word, lane);
        });
    }

    unsigned mask_;
    unsigned meta_rank_;
    unsigned meta_size_;
};

TMAASYNC_EMULATE_INLINE coalesced_group coalesced_threads() {
    return coalesced_group(__activemask());
}

TMAASYNC_EMULATE_INLINE thread_block_tile<1> this_thread() {
    return {0, 1};
}

// --- partitions ----------------------------------------------------------------------------------

template <unsigned kSize>
TMAASYNC_EMULATE_INLINE thread_block_tile<kSize, thread_block> tiled_partition(
    const thread_block& block
) {
    return {block.thread_rank() / kSize, (block.size() + kSize - 1) / kSize};
}
template <unsigned kSize, unsigned kParent, typename Grandparent>
TMAASYNC_EMULATE_INLINE thread_block_tile<kSize, thread_block_tile<kParent, Grandparent>>
tiled_partition(const thread_block_tile<kParent, Grandparent>& tile) {
    static_assert(kSize < kParent, "a tile is smaller than the tile that it is a part of");
    return {tile.thread_rank() / kSize, kParent / kSize};
}

namespace detail {

// Mask of `size` consecutive lanes, including this lane.
TMAASYNC_EMULATE_INLINE unsigned lanes_in_row(unsigned size) {
    if (size == 0 || size > 32 || (size & (size - 1)) != 0) {
        tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kTileSize);
    }
    return (0xffffffffu >> (32 - size)) << lane() / size * size;
}

}  // namespace detail

TMAASYNC_EMULATE_INLINE thread_group tiled_partition(const thread_block&, unsigned size) {
    const unsigned mask = detail::lanes_in_row(size);
    return {thread_group::Kind::kLanes, mask, size, detail::lane() % size};
}
TMAASYNC_EMULATE_INLINE thread_group tiled_partition(const thread_group& parent, unsigned size) {
    const unsigned row = detail::lanes_in_row(size);
    if (parent.kind() == thread_group::Kind::kBlock) {
        return {thread_group::Kind::kLanes, row, size, detail::lane() % size};
    }
    if (parent.kind() != thread_group::Kind::kLanes) {
        tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kTileParent);
    }
    return {thread_group::Kind::kLanes, parent.mask() & row, size, parent.thread_rank() % size};
}
TMAASYNC_EMULATE_INLINE coalesced_group
tiled_partition(const coalesced_group& parent, unsigned size) {
    (void)detail::lanes_in_row(size);  // fails for an impossible size
    const unsigned first = parent.thread_rank() / size * size;
    unsigned mask = 0;
    for (unsigned rank = first; rank < parent.size() && rank < first + size; ++rank) {
        mask |= 1u << detail::lane_of_rank(parent.mask(), rank);
    }
    return coalesced_group(mask, parent.thread_rank() / size, (parent.size() + size - 1) / size);
}

template <typename Group>
TMAASYNC_EMULATE_INLINE coalesced_group binary_partition(const Group& parent, bool predicate) {
    // CUDA counts absent lanes as lanes without the predicate, and then reads their registers.
    if (__ballot_sync(parent.mask(), true) != parent.mask()) {
        tmaasync_emulate::fail(tmaasync_emulate::FaultKind::kBinaryPartition);
    }
    const unsigned with = __ballot_sync(parent.mask(), predicate);
    if (with == 0 || with == parent.mask()) return coalesced_group(parent.mask());
    return coalesced_group(predicate ? with : parent.mask() & ~with, predicate, 2);
}
// Declared, so that a kernel that needs it is rejected with a reason.
template <unsigned kThreads>
struct block_tile_memory {
    static_assert(kThreads == 0, "block_tile_memory: tiles of several warps do not run on the CPU");
};

template <typename Group, typename Label>
TMAASYNC_EMULATE_INLINE coalesced_group labeled_partition(const Group& parent, Label label) {
    static_assert(
        ::std::is_integral_v<Label> || ::std::is_pointer_v<Label>,
        "a label is an integer or a pointer"
    );
    const unsigned mask = __match_any_sync(parent.mask(), label);
    // The first lane of each part stands for it.
    const auto first = static_cast<unsigned>(__builtin_ctz(mask));
    const unsigned leaders = __ballot_sync(parent.mask(), detail::lane() == first);
    return coalesced_group(
        mask, detail::rank_of_lane(leaders, first),
        static_cast<unsigned>(__builtin_popcount(leaders))
    );
}

}  // namespace cooperative_groups
