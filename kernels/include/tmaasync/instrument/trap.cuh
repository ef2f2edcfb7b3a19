#pragma once

#include <tmaasync/operands/integers.cuh>

#if !defined(__CUDACC_RTC__)
#include <cstdio>  // NVRTC knows printf by itself
#endif

// The end of a call that a debug build refuses. The emulator replaces this header.
namespace tmaasync::instrument {

constexpr bool kIsEmulated = false;

// Print the argument and its rule, and end the kernel, and the CUDA context with it. The host
// prints the line when it synchronises next.
[[noreturn]] __device__ __noinline__ inline void trap_with(
    const char* argument, i64 value, bool is_address, const char* rule, i64 limit
) {
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    printf(
        is_address ? "tmaasync: block (%u, %u, %u), thread %u: %s is %#llx; %s %lld.\n"
                   : "tmaasync: block (%u, %u, %u), thread %u: %s is %lld; %s %lld.\n",
        blockIdx.x, blockIdx.y, blockIdx.z, thread, argument, value, rule, limit
    );
    __trap();
}

// The same of every build, without the words: printing takes registers. A debug build has them.
[[noreturn]] __device__ __forceinline__ void trap_beyond(const char*, u64, u64) {
    __trap();
}

}  // namespace tmaasync::instrument
