#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 ld_acquire_sys(const u32* global) {
    return tmaasync_emulate::load_acquire_system(global);
}

__device__ __forceinline__ void st_release_sys(u32* global, u32 word) {
    tmaasync_emulate::store_release_system(global, word);
}

__device__ __forceinline__ void red_release_sys_add(u32* global, u32 value) {
    tmaasync_emulate::add_release_system(global, value);
}

}  // namespace tmaasync::ptx
