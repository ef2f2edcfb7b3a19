#pragma once

#include <tmaasync/ptx/integers.cuh>

#if !defined(__CUDACC_RTC__)
#include <cstdio>  // NVRTC knows printf by itself
#endif

// PTX ISA: "trap" ends the kernel, and the CUDA context with it.
namespace tmaasync::ptx {

// With last words, which the host prints when it synchronises next.
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

}  // namespace tmaasync::ptx
