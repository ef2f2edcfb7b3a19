// threadIdx and similar names as variables, for sources with members or variables of these names.
// Macros, which are faster, stand for them in all other sources (cuda.hpp).
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <tmaasync_emulate/calls.hpp>

extern thread_local const uint3 threadIdx __asm__("tmaasync_emulate_thread_index");
extern thread_local const uint3 blockIdx __asm__("tmaasync_emulate_block_index");
extern thread_local const dim3 blockDim __asm__("tmaasync_emulate_block_size");
extern thread_local const dim3 gridDim __asm__("tmaasync_emulate_grid_size");
constexpr int warpSize = 32;

namespace tmaasync_emulate {

// Nothing is at the variables' own addresses: __tls_get_addr returns those in the thread's Thread.
alignas(1) __attribute__((used)) thread_local unsigned char thread_index[1] __asm__(
    "tmaasync_emulate_thread_index"
);
alignas(1) __attribute__((used)) thread_local unsigned char block_index[1] __asm__(
    "tmaasync_emulate_block_index"
);
alignas(1) __attribute__((used)) thread_local unsigned char block_size[1] __asm__(
    "tmaasync_emulate_block_size"
);
alignas(1) __attribute__((used)) thread_local unsigned char grid_size[1] __asm__(
    "tmaasync_emulate_grid_size"
);

static std::size_t position_offsets[4];

TMAASYNC_EMULATE_UNSEEN static void find_position_offsets() {
    position_offsets[0] = reinterpret_cast<std::size_t>(&threadIdx);
    position_offsets[1] = reinterpret_cast<std::size_t>(&blockIdx);
    position_offsets[2] = reinterpret_cast<std::size_t>(&blockDim);
    position_offsets[3] = reinterpret_cast<std::size_t>(&gridDim);
}

// Returns the address of the position that has this offset among the thread_local variables.
TMAASYNC_EMULATE_INLINE TMAASYNC_EMULATE_UNSEEN void* position_at(std::size_t offset) {
    Thread& thread = current_thread();
    if (offset == position_offsets[0]) return &thread.thread;
    if (offset == position_offsets[1]) return &thread.block;
    if (offset == position_offsets[2]) return &thread.block_dim;
    if (offset == position_offsets[3]) return &thread.grid_dim;
    return nullptr;
}

}  // namespace tmaasync_emulate
