#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

// A value that is never negative is computed before the volatile instructions that follow. Between
// those and arithmetic the assembler keeps no order: it moves a wait ahead of all that does not
// depend on it, and then there is nothing left to do while waiting. So here is an instruction with
// an effect, which it cannot know not to take place.
__device__ __forceinline__ void compute_before(float not_negative) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        ".reg .u32 nowhere;\n\t"
        "mov.u32 nowhere, 0;\n\t"
        "setp.lt.f32 p, %0, 0f00000000;\n\t"
        "@p st.shared::cta.f32 [nowhere], %0;\n\t"
        "}"
        :
        : "f"(not_negative)
        : "memory"
    );
}

}  // namespace tmaasync::ptx
