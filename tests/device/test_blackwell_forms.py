"""Each function of `ptx/` for Blackwell becomes the instruction that its parameters name."""

from __future__ import annotations

import re

import pytest

from tmaasync import CompileError
from tmaasync._source.compile import Source, assemble

TEXT = """
#include <tmaasync/global.cuh>
#include <tmaasync/ptx/cvt.cuh>
#include <tmaasync/ptx/f32x2.cuh>
#include <tmaasync/ptx/ldmatrix.cuh>
#include <tmaasync/ptx/mma.cuh>
#include <tmaasync/ptx/redux.cuh>
#include <tmaasync/ptx/stmatrix.cuh>
#include <tmaasync/ptx/tcgen05_mma.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

struct alignas(32) Wide {
    u32 words[8];
};
__device__ u32 float_as_word(float value) {
    return __float_as_uint(value);
}

extern "C" __global__ void forms(u32* words, u64 a, u64 b, u32 d, u32 in_a, u32 i, u32 e) {
    const bool p = words[0];
    const u32 four[4] = {words[1], 2, 3, 4}, eight[8] = {words[1], 2, 3, 4, 5, 6, 7, 8};
    const u32 two[2] = {words[2], 3};
    const float f = int(words[3]), floats[4] = {f, 1, 2, 3};
    u32 own[4] = {words[4], 1, 2, 3};
    volatile u32* const out = words + 9;
    (void)out;
    (void)four, (void)eight, (void)two, (void)floats, (void)p;
    CALLS
    for (int j = 0; j < 4; ++j) words[10 + j] = own[j];
}
"""
K = "Tcgen05Kind::k"
C = "Tcgen05Collector::k"
SPARSE, SPARSE_IN = "Tcgen05Sparse<u64>{a, e}", "Tcgen05Sparse<u32>{in_a, e}"
REST = "b, i, p"
MULTIPLICATIONS = {
    f"tcgen05_mma<{K}F16>(d, a, {REST});": "mma.cta_group::1.kind::f16",
    f"tcgen05_mma<{K}F16>(d, {SPARSE}, {REST});": "mma.sp.cta_group::1.kind::f16",
    f"tcgen05_mma<{K}TF32, 2, 3>(d, {SPARSE_IN}, {REST});": "mma.sp.cta_group::2.kind::tf32",
    f"tcgen05_mma<{K}F8F6F4, 1, 0, {C}Fill>(d, a, {REST});": (
        "mma.cta_group::1.kind::f8f6f4.collector::a::fill"
    ),
    f"tcgen05_mma<{K}F16, 1, 0, {C}LastUse, true>(d, in_a, {REST});": (
        "mma.cta_group::1.kind::f16.ashift.collector::a::lastuse"
    ),
    f"tcgen05_mma<{K}F16>(d, {SPARSE}, {REST}, four);": "mma.sp.cta_group::1.kind::f16",
    f"tcgen05_mma<{K}F16>(d, a, {REST}, eight);": "mma.cta_group::2.kind::f16",
    f"tcgen05_mma_block_scale<{K}MXF8F6F4>(d, a, b, i, e, e, p);": (
        "mma.cta_group::1.kind::mxf8f6f4.block_scale.block32"
    ),
    f"tcgen05_mma_block_scale<{K}MXF4NVF4, 2, 16, {C}Use>(d, {SPARSE}, b, i, e, e, p);": (
        "mma.sp.cta_group::2.kind::mxf4nvf4.block_scale.block16.collector::a::use"
    ),
    f"tcgen05_mma_ws<{K}F16>(d, a, {REST});": (
        "mma.ws.cta_group::1.kind::f16.collector::b0::discard"
    ),
    f"tcgen05_mma_ws<{K}TF32, {C}Fill, 3>(d, {SPARSE_IN}, {REST});": (
        "mma.ws.sp.cta_group::1.kind::tf32.collector::b3::fill"
    ),
}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_multiplications_of_tensor_memory(arch: str, group: int) -> None:
    """A kernel has one cta_group."""
    forms = {
        call: opcode for call, opcode in MULTIPLICATIONS.items() if f"cta_group::{group}" in opcode
    }
    found = re.findall(r"tcgen05\.(\S+)", compiled(list(forms), arch))
    assert found == list(forms.values())


def compiled(calls: list[str], arch: str) -> str:
    """Return the PTX, which the assembler has taken without a warning."""
    source = Source(text=TEXT.replace("CALLS", "\n    ".join(calls)), name="forms.cu")
    assembly = assemble(source, arch)
    assert "warning" not in assembly.log
    return assembly.ptx


F = "SmallFloat::k"
HELD = "{ float d[4] = {f, f, f, f}; CALL; out[0] = float_as_word(d[1]); }"
HALVES = "{ u32 d[2] = {e, e}; CALL; out[0] = d[1]; }"
MATRIX = "{ u32 m[COUNT]; CALL; out[0] = m[0]; }"
DENSE, SPARSE_AB = "d, four, two", "d, four, four, e"
SCALES = "MmaScale<2, 1>{e}, MmaScale<0, 3>{in_a}"
BLACKWELL = {
    f"out[0] = cvt_rn_satfinite_x2<{F}E2M1>(f, f);": "cvt.rn.satfinite.e2m1x2.f32",
    f"out[0] = cvt_rn_satfinite_x2<{F}E2M3, true>(f, f);": "cvt.rn.satfinite.relu.e2m3x2.f32",
    f"out[0] = cvt_rn_f16x2<{F}E2M1>(e);": "cvt.rn.f16x2.e2m1x2",
    f"out[0] = cvt_rn_f16x2<{F}E3M2, true>(e);": "cvt.rn.relu.f16x2.e3m2x2",
    "out[0] = cvt_satfinite_ue8m0x2(f, f);": "cvt.rp.satfinite.ue8m0x2.f32",
    "out[0] = u32(add_f32x2(a, b));": "add.rn.f32x2",
    "out[0] = u32(mul_f32x2<true>(a, b));": "mul.rz.f32x2",
    "out[0] = u32(fma_f32x2(a, b, a));": "fma.rn.f32x2",
    MATRIX.replace("COUNT", "4").replace("CALL", "ldmatrix_b8_trans<2>(e, m)"): (
        "ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8"
    ),
    MATRIX.replace("COUNT", "2").replace("CALL", "ldmatrix_b8x16<6>(e, m)"): (
        "ldmatrix.sync.aligned.m8n16.x2.shared::cta.b8x16.b6x16_p32"
    ),
    "stmatrix_b8_trans(e, four);": "stmatrix.sync.aligned.m16n8.x4.trans.shared::cta.b8",
    "store_global<32>(reinterpret_cast<Wide*>(words), load_global<32>("
    "reinterpret_cast<const Wide*>(words)));": "ld.global.v8.b32",
}
DATA_CENTER = {
    f"out[0] = cvt_rs_satfinite_x4<{F}E2M1>(floats, e);": "cvt.rs.satfinite.e2m1x4.f32",
    f"out[0] = cvt_rs_satfinite_x4<{F}E4M3, true>(floats, e);": (
        "cvt.rs.relu.satfinite.e4m3x4.f32"
    ),
    "out[0] = cvt_rs_satfinite_bf16x2(f, f, e);": "cvt.rs.satfinite.bf16x2.f32",
    "out[0] = float_as_word(redux_sync_f32<true, true>(f, ~0u));": "redux.sync.max.abs.f32",
}
WORKSTATION = {
    HELD.replace("CALL", f"mma_f8f6f4<{F}E4M3, {F}E2M1>({DENSE})"): (
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e2m1.f32"
    ),
    HALVES.replace("CALL", f"mma_f8f6f4<{F}E4M3, {F}E2M1>({SPARSE_AB})"): (
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f16.e4m3.e2m1.f16"
    ),
    HELD.replace("CALL", f"mma_mxf8f6f4<{F}E3M2, {F}E2M3>({DENSE}, {SCALES})"): (
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
        ".f32.e3m2.e2m3.f32.ue8m0"
    ),
    HELD.replace("CALL", f"mma_mxf8f6f4<{F}E3M2, {F}E2M3>({SPARSE_AB}, {SCALES})"): (
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::mxf8f6f4.block_scale"
        ".scale_vec::1X.f32.e3m2.e2m3.f32.ue8m0"
    ),
    HELD.replace("CALL", f"mma_mxf4<false>({DENSE}, {SCALES})"): (
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X"
        ".f32.e2m1.e2m1.f32.ue8m0"
    ),
    HELD.replace(
        "CALL", f"mma_mxf4<true>({SPARSE_AB}, MmaScale<0, 1>{{e}}, MmaScale<0, 3>{{e}})"
    ): (
        "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4nvf4.block_scale"
        ".scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"
    ),
}
EVERY = {
    "{ float d[8] = {f, f}; mma_m8n8k4<true>(d, two, two); out[0] = float_as_word(d[7]); }": (
        "mma.sync.aligned.m8n8k4.col.col.f32.f16.f16.f32"
    ),
    "mma_m8n8k4<false, true>(own, two, two);": "mma.sync.aligned.m8n8k4.row.row.f16.f16.f16.f16",
}
OF_CHIPS = {
    "sm_90a": EVERY,
    "sm_100a": {**EVERY, **BLACKWELL, **DATA_CENTER},
    "sm_103a": {**EVERY, **BLACKWELL, **DATA_CENTER},
    "sm_120a": {**EVERY, **BLACKWELL, **WORKSTATION},
}


@pytest.mark.parametrize("arch", OF_CHIPS)
def test_other_functions(arch: str) -> None:
    opcodes = list(OF_CHIPS[arch].values())

    ptx = compiled(list(OF_CHIPS[arch]), arch)

    found = {one for one in re.findall(r"[\w.:]+", ptx) if one in opcodes}
    assert found == set(opcodes)
    others = {**WORKSTATION, **DATA_CENTER}
    lacking = next(call for call in others if call not in OF_CHIPS[arch])
    with pytest.raises(CompileError, match=r"not supported|requires|Illegal"):
        compiled([lacking], arch)
