"""Instructions that a chip lacks are refused with the line, the chip and what to use instead."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tmaasync import CompileError, Kernel
from tmaasync.emulate.chips import CHIPS
from tmaasync.emulate.chips.instructions import missing

ARCHS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
BLACKWELL = ("sm_100a", "sm_103a", "sm_120a")
DATA_CENTER = ("sm_100a", "sm_103a")
EIGHT = "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}"
FOUR = "{%rd2, %rd3, %rd4, %rd5}"
TENSOR_COPY = "cp.async.bulk.tensor.2d.shared"
COMPLETE = "mbarrier::complete_tx::bytes"

# An instruction, and the chips that have it: ptxas is the reference.
INSTRUCTIONS = {
    "wgmma.fence.sync.aligned;": ("sm_90a",),
    "wgmma.commit_group.sync.aligned;": ("sm_90a",),
    "tcgen05.wait::ld.sync.aligned;": DATA_CENTER,
    "tcgen05.fence::before_thread_sync;": DATA_CENTER,
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;": DATA_CENTER,
    "tcgen05.shift.cta_group::1.down [%r1];": DATA_CENTER,
    "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;": DATA_CENTER,
    "tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r2, %p1;": ("sm_100a",),
    "tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {%r1, %r2}, %r3, [%r4];": ("sm_103a",),
    f"clusterlaunchcontrol.try_cancel.async.shared::cta.{COMPLETE}.b128 [%r1], [%r2];": BLACKWELL,
    f"{TENSOR_COPY}::cluster.global.tile.{COMPLETE}.cta_group::2"
    " [%r1], [%rd1, {%r2, %r3}], [%r4];": DATA_CENTER,
    f"{TENSOR_COPY}::cluster.global.tile::gather4.{COMPLETE}"
    " [%r1], [%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r7];": DATA_CENTER,
    f"{TENSOR_COPY}::cta.global.tile::gather4.{COMPLETE}"
    " [%r1], [%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r7];": BLACKWELL,
    f"{TENSOR_COPY}::cluster.global.tile.{COMPLETE} [%r1], [%rd1, {{%r2, %r3}}], [%r4];": ARCHS,
    "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
    " [%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r7];": DATA_CENTER,
    "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile::scatter4.bulk_group"
    " [%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r7];": DATA_CENTER,
    "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4"
    " [%rd1, {%r2, %r3, %r4, %r5, %r6}];": DATA_CENTER,
    f"cp.async.bulk.tensor.4d.shared::cta.global.im2col::w::128.{COMPLETE}"
    " [%r1], [%rd1, {%r2, %r3, %r4, %r5}], [%r6], {%h1, %h2};": DATA_CENTER,
    f"cp.async.bulk.tensor.4d.shared::cta.global.im2col::w.{COMPLETE}"
    " [%r1], [%rd1, {%r2, %r3, %r4, %r5}], [%r6], {%h1, %h2};": BLACKWELL,
    f"cp.async.bulk.tensor.4d.shared::cluster.global.im2col::w.{COMPLETE}"
    " [%r1], [%rd1, {%r2, %r3, %r4, %r5}], [%r6], {%h1, %h2};": DATA_CENTER,
    f"cp.async.bulk.tensor.4d.shared::cluster.global.im2col.{COMPLETE}.cta_group::2"
    " [%r1], [%rd1, {%r2, %r3, %r4, %r5}], [%r6], {%h1, %h2};": DATA_CENTER,
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r1], %r2, %h1;": BLACKWELL,
    "st.bulk.weak.shared::cta [%r1], %rd2, 0;": BLACKWELL,
    "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%rd1], 1;": BLACKWELL,
    "add.rz.sat.f32.bf16 %f1, %h1, %f2;": BLACKWELL,
    "sub.f32.f16 %f1, %h1, %f2;": BLACKWELL,
    "fma.rn.f32.f16 %f1, %h1, %h2, %f2;": BLACKWELL,
    "add.rn.f32x2 %rd1, %rd2, %rd3;": BLACKWELL,
    "sub.f32x2 %rd1, %rd2, %rd3;": BLACKWELL,
    "fma.rz.ftz.f32x2 %rd1, %rd2, %rd3, %rd4;": BLACKWELL,
    f"ld.global.v8.b32 {EIGHT}, [%rd1];": BLACKWELL,
    f"ld.global.nc.L1::no_allocate.v4.b64 {FOUR}, [%rd1];": BLACKWELL,
    f"st.relaxed.gpu.global.v8.b32 [%rd1], {EIGHT};": BLACKWELL,
    "st.global.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};": ARCHS,
    "ld.global.v2.b64 {%rd2, %rd3}, [%rd1];": ARCHS,
    "redux.sync.max.abs.NaN.f32 %f1, %f2, -1;": DATA_CENTER,
    "redux.sync.max.u32 %r1, %r2, -1;": ARCHS,
    "min.f32 %f1, %f2, %f3, %f4;": BLACKWELL,
    "max.ftz.NaN.abs.f32 %f1, %f2, %f3, %f4;": BLACKWELL,
    "max.NaN.f32 %f1, %f2, %f3;": ARCHS,
    "cvt.rn.satfinite.e2m1x2.f32 %c1, %f1, %f2;": BLACKWELL,
    "cvt.rn.f16x2.e3m2x2 %r1, %h1;": BLACKWELL,
    "cvt.rz.satfinite.ue8m0x2.bf16x2 %h1, %r1;": BLACKWELL,
    "cvt.rs.f16x2.f32 %r1, %f1, %f2, %r3;": DATA_CENTER,
    "cvt.rs.relu.satfinite.bf16x2.f32 %r1, %f1, %f2, %r3;": DATA_CENTER,
    "cvt.rs.satfinite.e4m3x4.f32 %r1, {%f1, %f2, %f3, %f4}, %r3;": DATA_CENTER,
    "cvt.rs.relu.satfinite.e2m1x4.f32 %h1, {%f1, %f2, %f3, %f4}, %r3;": DATA_CENTER,
    "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;": ARCHS,
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r3];": BLACKWELL,
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r3], {%r1};": BLACKWELL,
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8x16.b4x16_p64 {%r1, %r2}, [%r3];": BLACKWELL,
    "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r1}, [%r3];": ARCHS,
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e2m1.f32"
    " {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};": ("sm_120a",),
    "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.e4m3.e2m1.f32"
    " {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, {%f1, %f2, %f3, %f4},"
    " %r1, 0x0;": ("sm_120a",),
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    " {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};": ARCHS,
}
MODULE = """
.version {version}
.target {arch}
.address_size 64
.visible .entry k()
{{
    .reg .b64 %rd<9>;
    .reg .b32 %r<9>;
    .reg .f32 %f<9>;
    .reg .b16 %h<9>;
    .reg .b8 %c<9>;
    .reg .pred %p<9>;
    {instruction}
    ret;
}}
"""


def operands(instruction: str) -> int:
    text = re.sub(r"[\[{][^\]}]*[\]}]", "group", instruction.partition(" ")[2].rstrip(";"))
    return len([one for one in text.split(",") if one.strip()])


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_each_chip_lacks_the_instructions_that_ptxas_refuses_for_it(instruction: str) -> None:
    opcode = instruction.partition(" ")[0].rstrip(";")
    for arch in ARCHS:
        reason = missing(CHIPS[arch], opcode, operands(instruction))
        assert (reason is None) == (arch in INSTRUCTIONS[instruction]), (arch, reason)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("arch", ARCHS)
def test_ptxas_refuses_them_for_the_same_chips(arch: str, tmp_path: Path) -> None:
    body = "\n".join(INSTRUCTIONS)
    path = tmp_path / "k.ptx"
    path.write_text(MODULE.format(version="9.0", arch=arch, instruction=body))
    command = ["ptxas", f"-arch={arch}", str(path), "-o", str(tmp_path / "k.cubin")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    first = MODULE.partition("{instruction}")[0].count("\n") + 1
    refused = {int(line) - first for line in re.findall(r", line (\d+); error", ran.stderr)}

    lacking = [arch not in archs for archs in INSTRUCTIONS.values()]
    assert [index in refused for index in range(len(lacking))] == lacking, ran.stderr[:3000]


ASM = 'extern "C" __global__ void k(int* x) {{\n    x[0] = 1;\n    asm volatile("{}");\n}}\n'
HEADER = """#include <tmaasync/wgmma.cuh>
__device__ __forceinline__ void fence() {
    tmaasync::ptx::wgmma_fence();
}
extern "C" __global__ void k(int* x) {
    if (CALLS) fence();
    x[threadIdx.x] = 1;
}
"""


@pytest.mark.parametrize(
    ("arch", "instruction", "words"),
    [
        (
            "sm_100a",
            "wgmma.fence.sync.aligned;",
            r"is of sm_90a, and .* sm_100a, whose tensor cores take tcgen05. Use tcgen05 or mma",
        ),
        ("sm_120a", "wgmma.fence.sync.aligned;", r"is of sm_90a, .* for sm_120a, .*Use mma\.sync,"),
        (
            "sm_90a",
            "tcgen05.wait::ld.sync.aligned;",
            r'is of sm_100a and sm_103a, .* Use wgmma or mma\.sync, or pass arch="sm_100a"',
        ),
        ("sm_120a", "tcgen05.wait::ld.sync.aligned;", r"is .* for sm_120a, .* Use mma\.sync,"),
        (
            "sm_103a",
            "tcgen05.wait::all.sync.aligned;",
            r"is of sm_100a and sm_103a, and the CPU does not emulate it yet\. .* B300",
        ),
    ],
)
def test_the_error_has_the_line_the_chip_and_another_instruction(
    arch: str, instruction: str, words: str
) -> None:
    with pytest.raises(CompileError, match=rf"at kernel\.cu:3: `{instruction[:-1]}` {words}"):
        Kernel(ASM.format(instruction), "k", arch=arch)(1, 1, (np.zeros(1, np.int32),))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arch", ["sm_100a", "sm_120a"])
def test_a_call_of_wgmma_is_refused_and_its_header_is_not(arch: str) -> None:
    x = np.zeros(128, np.int32)

    Kernel(HEADER, "k", constants={"CALLS": False}, arch=arch)(1, 128, (x,))
    assert x.all()
    with pytest.raises(CompileError, match=rf"at kernel\.cu:3: wgmma is of sm_90a, and .* {arch},"):
        Kernel(HEADER, "k", constants={"CALLS": True}, arch=arch)(1, 128, (x,))


def test_a_module_is_refused_at_its_line() -> None:
    text = MODULE.format(version="8.8", arch="sm_100a", instruction="wgmma.fence.sync.aligned;")

    with pytest.raises(CompileError, match=r":13: `wgmma.*` is of sm_90a, .* for sm_100a"):
        Kernel(text)(1, 128, ())


PAIRS = """
extern "C" __global__ void k(const float2* a, float2* out) {
    out[0] = __fadd2_rn(a[0], a[1]);
    out[1] = __fmul2_rz(a[0], a[1]);
    out[2] = __ffma2_ru(a[0], a[1], a[2]);
}
"""


def test_functions_of_pairs_of_floats_run_where_they_exist() -> None:
    rng = np.random.default_rng(3)
    a, out = rng.standard_normal((3, 2)).astype(np.float32), np.zeros((3, 2), np.float32)
    with pytest.raises(CompileError, match=r"kernel\.cu:3: __fadd2_rn is of sm_100a, .* sm_90a\. "):
        Kernel(PAIRS, "k")(1, 1, (a, out))

    Kernel(PAIRS, "k", arch="sm_120a")(1, 1, (a, out))

    exact = a.astype(np.longdouble)
    assert (out[0] == a[0] + a[1]).all()
    exact_pair = exact[0] * exact[1]
    assert (np.abs(out[1]) <= np.abs(exact_pair)).all()
    assert (np.abs(np.nextafter(out[1], np.copysign(np.inf, out[1]))) > np.abs(exact_pair)).all()
    total = exact_pair + exact[2]
    assert (out[2] >= total).all()
    assert (np.nextafter(out[2], -np.float32(np.inf)) < total).all()
