"""Names of dynamic shared memory that the caller gives, for sources without a struct of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, EmulatedDeadlock, EmulatedRace, Kernel

BARE = {
    "kernel.cu": """
extern __shared__ __align__(16) unsigned char memory[];
__global__ void bare(float* out, int waits) {
    const unsigned full = (unsigned)__cvta_generic_to_shared(memory + 520);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 5;" :: "r"(full));
    __syncthreads();
    if (waits) asm volatile(
        "{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra L; }"
        :: "r"(full));
    else ((float*)memory)[70 + threadIdx.x / 2] = threadIdx.x;
}
""",
    "kernel.ptx": """.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry bare(.param .u64 out, .param .u32 waits)
{
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [waits];
    mov.u32 %r2, %tid.x;
    mov.b32 %r3, memory;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 mbarrier.init.shared.b64 [%r3 + 520], 5;
    bar.sync 0;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra WAIT;
    shr.u32 %r1, %r2, 1;
    shl.b32 %r1, %r1, 2;
    add.u32 %r3, %r3, %r1;
    st.shared.u32 [%r3 + 280], %r2;
    ret;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r3 + 520], 0;
    @!%p1 bra WAIT;
    ret;
}
""",
}


@pytest.mark.parametrize("source", BARE)
def test_the_caller_names_dynamic_shared_memory(source: str) -> None:
    names = {"a": 0, "b": 256, "full[0]": 512, "full[1]": 520}
    kernel = Kernel(BARE[source], "bare", names=names)
    out = np.zeros(1, np.float32)
    with pytest.raises(EmulatedRace, match=r"race on b \(shared offset 280\)"):
        kernel(1, 64, (out, 0), shared_mem=528)
    with pytest.raises(EmulatedDeadlock, match=r"on full\[1\], phase 0"):
        kernel(1, 64, (out, 1), shared_mem=528)


@pytest.mark.parametrize("names", [["a"], {"a": "b"}, {"a": -8}, {0: "a"}])
def test_a_wrong_name_of_shared_memory_is_refused(names: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^names.* is .*Pass a dict, such as \{'tile': 0"):
        Kernel(BARE["kernel.ptx"], names=names)
