"""Functions of PTX modules that take and return registers."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import CompileError, Kernel

MODULE = """.version 8.0
.target sm_90a
.address_size 64
.func (.reg .f32 %out, .reg .u32 %odd) scaled(.reg .f32 %a, .reg .u32 %n);
.func put(.reg .u64 %p, .reg .f32 %value)
{
    st.global.f32 [%p], %value;
    ret;
}
.func (.reg .f32 %out, .reg .u32 %odd) scaled(
    .reg .f32 %a,
    .reg .u32 %n
) {
    .reg .pred %p; .reg .f32 %f;
    cvt.rn.f32.u32 %f, %n;
    fma.rn.f32 %out, %a, 0f40000000, %f;
    and.b32 %odd, %n, 1;
    setp.eq.u32 %p, %odd, 0;
    @%p ret;
    { .reg .f32 %f; mov.f32 %f, 0f42C80000; add.f32 %out, %out, %f; }
}
.visible .entry launched(.param .u64 out)
{
    .reg .pred %p; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.f32 %f1, 0f3FC00000;
    call (%f2, %r2), scaled, (%f1, %r1);
    setp.gt.u32 %p, %r1, 3;
    @%p call.uni (%f2, %r2), scaled,
        (%f2, 2);
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd1, %rd1, %rd2;
    call put, (%rd1, %f2);
    BAD
    ret;
}
"""


def test_registers_are_passed_and_returned() -> None:
    out, thread = np.zeros(8, np.float32), np.arange(8)

    Kernel(MODULE.replace("BAD", ""), "launched")(1, 8, (out,))

    once = 3 + thread + 100 * (thread % 2)
    assert out.tolist() == np.where(thread > 3, 2 * once + 2, once).tolist()


def test_lines_stay_where_they_are() -> None:
    line = MODULE[: MODULE.index("BAD")].count("\n") + 1

    with pytest.raises(CompileError, match=rf"at kernel\.ptx:{line}: `frame\.buffer 3`"):
        Kernel(MODULE.replace("BAD", "frame.buffer 3;"), "launched")(
            1, 8, (np.zeros(8, np.float32),)
        )


def test_predicates_are_refused_as_parameters() -> None:
    module = MODULE.replace("BAD", "").replace(".reg .u32 %odd", ".reg .pred %odd")

    with pytest.raises(CompileError, match=r"`\.reg \.f32 %out` is no parameter in memory"):
        Kernel(module, "launched")(1, 8, (np.zeros(8, np.float32),))
