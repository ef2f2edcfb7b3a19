#pragma once

// PTX ISA: "exit" ends this thread.
namespace tmaasync::ptx {

__device__ __forceinline__ void exit() {
    asm volatile("exit;" ::: "memory");
}

}  // namespace tmaasync::ptx
