#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "Asynchronous Warpgroup Level Matrix Instructions" (sm_90a). All four warps of a
// warpgroup execute each of these together. The multiplications themselves are in wgmma_mma.cuh.
namespace tmaasync::ptx {

// Order earlier accesses to registers and shared memory before the multiplications that follow.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait until at most kPending of the committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
    static_assert(kPending >= 0 && kPending <= 7, "0 to 7 groups");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// No instruction: keeps the compiler from moving a register that wgmma uses across this point.
__device__ __forceinline__ void wgmma_fence_operand(float& held) {
    asm volatile("" : "+f"(held)::"memory");
}
__device__ __forceinline__ void wgmma_fence_operand(u32& held) {
    asm volatile("" : "+r"(held)::"memory");
}
__device__ __forceinline__ void wgmma_fence_operand(int& held) {
    asm volatile("" : "+r"(held)::"memory");
}

}  // namespace tmaasync::ptx
