// Cooperative groups on the CPU, built on the warp functions and barriers of the emulator. The text
// is our own; the CUDA C++ Programming Guide defines the interface.
#pragma once

#include <cooperative_groups/detail/blocks.hpp>
#include <cooperative_groups/detail/invoke.hpp>
#include <cooperative_groups/detail/tiles.hpp>

namespace cooperative_groups {

// CUDA 13 has no multi-device launches.
template <typename T = void>
void this_multi_grid() {
    static_assert(
        sizeof(T*) == 0, "this_multi_grid() is gone since CUDA 13: launch one grid a device"
    );
}

template <typename Group>
TMAASYNC_EMULATE_INLINE void sync(const Group& group) {
    group.sync();
}
template <typename Group>
TMAASYNC_EMULATE_INLINE auto thread_rank(const Group& group) {
    return group.thread_rank();
}
template <typename Group>
TMAASYNC_EMULATE_INLINE auto group_size(const Group& group) {
    return group.size();
}

}  // namespace cooperative_groups
