"""Functions of `ptx/` for Blackwell do on the CPU what their instructions do in an asm statement.

The instructions themselves are tested against NumPy elsewhere.
"""

from __future__ import annotations

import numpy as np
import pytest
from arrays_in_memory import aligned
from bodies import chosen

from tmaasync import CompileError, Kernel

SOURCE = """
#include <tmaasync/global.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/cvt.cuh>
#include <tmaasync/ptx/f32x2.cuh>
#include <tmaasync/ptx/ldmatrix.cuh>
#include <tmaasync/ptx/mma.cuh>
#include <tmaasync/ptx/redux.cuh>
#include <tmaasync/ptx/stmatrix.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

struct alignas(32) Wide {
    u32 words[8];
};
template <typename To, typename From>
__device__ To as(From value) {
    To to;
    static_assert(sizeof(to) == sizeof(value));
    memcpy(&to, &value, sizeof(to));
    return to;
}

// By the function into one half of the results, by the instruction into the other.
extern "C" __global__ void both(const u32* in, u32* out, int what) {
    __shared__ alignas(128) u32 tile[1024];
    const u32 t = threadIdx.x;
    const u32* const w = in + 16 * t;
    u32* const r = out + 8 * t;
    u32* const s = out + 8 * (32 + t);
    const float x = as<float>(w[0]), y = as<float>(w[1]);
    const float four[4] = {x, y, as<float>(w[2]), as<float>(w[3])};
    const u64 p = w[0] | u64{w[1]} << 32, q = w[2] | u64{w[3]} << 32;
    const u32 a[4] = {w[4], w[5], w[6], w[7]}, b[4] = {w[8], w[9], w[10], w[11]};
    const u32 b2[2] = {w[8], w[9]}, e = w[12];
    const u32 row = shared_address(tile) + 16 * t;
    for (int i = 0; i < 4; ++i) tile[4 * t + i] = w[i], tile[512 + 4 * t + i] = 0;
    (void)x, (void)y, (void)four, (void)p, (void)q, (void)a, (void)b, (void)b2, (void)e, (void)row;
    __syncwarp();
BODIES
}
"""
F = "SmallFloat::k"


def one(call: str, text: str, operands: str, letter: str = "r") -> str:
    """A call with a result of 32 bits, and the statement."""
    kind = "float" if letter == "f" else "u32"
    held = f'{kind} d; asm volatile("{text}" : "={letter}"(d) : {operands}); s[0] = as<u32>(d);'
    return f"r[0] = as<u32>({call}); {held}"


def pair(call: str, opcode: str, operands: str) -> str:
    places = ", ".join(f"%{1 + i}" for i in range(operands.count("(")))
    held = f'u64 d; asm volatile("{opcode} %0, {places};" : "=l"(d) : {operands});'
    return f"memcpy(r, &(const u64&){call}, 8); {held} memcpy(s, &d, 8);"


def narrow(opcode: str) -> str:
    """A conversion of two floats, whose result has 16 bits."""
    return f"{{ .reg .b16 d; {opcode} d, %1, %2; cvt.u32.u16 %0, d; }}"


def sums(call: str, opcode: str, parts: str, letter: str = "f") -> str:
    """A multiplication that adds to the array d, and the statement that does."""
    kind, count = ("float", 4) if letter == "f" else ("u32", 2)
    held = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    d = ", ".join(f"%{i}" for i in range(count))
    names = {"A": 4, "B": 4 if ".sp" in opcode else 2}
    text, at = f"{{{d}}}", count
    inputs = []
    for name, size in names.items():
        text += f", {{{', '.join(f'%{at + i}' for i in range(size))}}}"
        inputs += [f'"r"({name.lower()}[{i}])' for i in range(size)]
        at += size
    text += f", {{{d}}}"
    if ".sp" in opcode:
        text, at = f"{text}, %{at}, 0x0", at + 1
        inputs.append('"r"(e)')
    if parts:
        text += f", {{%{at}}}, {{{parts[:4]}}}, {{%{at + 1}}}, {{{parts[5:]}}}"
        inputs += ['"r"(w[13])', '"r"(w[14])']
    start = f"{kind} d[{count}], z[{count}]; for (int i = 0; i < {count}; ++i) "
    start += f"d[i] = z[i] = as<{kind}>(w[i]);"
    statement = f'asm volatile("{opcode} {text};" : {held} : {", ".join(inputs)});'
    end = f"memcpy(r, z, {4 * count}); memcpy(s, d, {4 * count});"
    return f"{start} {call}; {statement} {end}"


WIDE = (
    "store_global<32>(reinterpret_cast<Wide*>(r), "
    "load_global<32>(reinterpret_cast<const Wide*>(w))); "
    "for (int i = 0; i < 8; ++i) s[i] = w[i];"
)
NOTHING = (
    "*reinterpret_cast<Wide*>(r) = load_global<32>(reinterpret_cast<const Wide*>(w), t % 2 == 0); "
    "for (int i = 0; i < 8; ++i) s[i] = t % 2 == 0 ? w[i] : 0;"
)
QUADS = (
    "float d[8], z[8]; for (int i = 0; i < 8; ++i) d[i] = z[i] = float(i); "
    "const u32 a2[2] = {w[4] & 0xbfffbfff, w[5] & 0xbfffbfff}, c2[2] = {w[6] & 0x3c003fff, 0}; "
    "mma_m8n8k4<true>(z, a2, c2); "
    'asm volatile("mma.sync.aligned.m8n8k4.col.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}'
    ', {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};" : "+f"(d[0]), "+f"(d[1]), '
    '"+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) : "r"(a2[0]), '
    '"r"(a2[1]), "r"(c2[0]), "r"(c2[1])); memcpy(r, z, 32); memcpy(s, d, 32);'
)
XY = '"f"(x), "f"(y)'
BLACKWELL = {
    "e2m3": one(f"cvt_rn_satfinite_x2<{F}E2M3>(x, y)", narrow("cvt.rn.satfinite.e2m3x2.f32"), XY),
    "e5m2": one(
        f"cvt_rn_satfinite_x2<{F}E5M2, true>(x, y)", narrow("cvt.rn.satfinite.relu.e5m2x2.f32"), XY
    ),
    "scales": one("cvt_satfinite_ue8m0x2<false>(x, y)", narrow("cvt.rz.satfinite.ue8m0x2.f32"), XY),
    "scales up": one("cvt_satfinite_ue8m0x2(x, y)", narrow("cvt.rp.satfinite.ue8m0x2.f32"), XY),
    "e2m1": one(
        f"cvt_rn_satfinite_x2<{F}E2M1>(x, y)",
        "{ .reg .b8 d; .reg .b16 h; cvt.rn.satfinite.e2m1x2.f32 d, %1, %2; mov.b16 h, {d, 0};"
        " cvt.u32.u16 %0, h; }",
        XY,
    ),
    "halves": one(
        f"cvt_rn_f16x2<{F}E3M2, true>(w[0] & 0x3f3f)",
        "{ .reg .b16 d; cvt.u16.u32 d, %1; cvt.rn.relu.f16x2.e3m2x2 %0, d; }",
        '"r"(w[0] & 0x3f3f)',
    ),
    "halves of e2m1": one(
        f"cvt_rn_f16x2<{F}E2M1>(w[0] & 0xff)",
        "{ .reg .b8 d; .reg .b16 h; cvt.u16.u32 h, %1; mov.b16 {d, _}, h; "
        "cvt.rn.f16x2.e2m1x2 %0, d; }",
        '"r"(w[0] & 0xff)',
    ),
    "add": pair("add_f32x2(p, q)", "add.rn.f32x2", '"l"(p), "l"(q)'),
    "mul": pair("mul_f32x2<true>(p, q)", "mul.rz.f32x2", '"l"(p), "l"(q)'),
    "fma": pair("fma_f32x2(p, q, p)", "fma.rn.f32x2", '"l"(p), "l"(q), "l"(p)'),
    "ldmatrix": (
        "u32 m[4]; ldmatrix_b8_trans<2>(row, m); asm volatile("
        '"ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8 {%0, %1, %2, %3}, [%4];" '
        ': "=r"(s[0]), "=r"(s[1]), "=r"(s[2]), "=r"(s[3]) : "r"(row)); memcpy(r, m, 16);'
    ),
    "ldmatrix of 6 bits": (
        "u32 m[2]; ldmatrix_b8x16<6>(row, m); asm volatile("
        '"ldmatrix.sync.aligned.m8n16.x2.shared::cta.b8x16.b6x16_p32 {%0, %1}, [%2];" '
        ': "=r"(s[0]), "=r"(s[1]) : "r"(row)); memcpy(r, m, 8);'
    ),
    "stmatrix": (
        "tile[4 * t] = 0; __syncwarp(); u32 m[2] = {w[0], w[1]}; stmatrix_b8_trans(row, m); "
        "__syncwarp(); r[0] = tile[4 * t]; "
        "__syncwarp(); tile[4 * t] = 0; __syncwarp(); "
        'asm volatile("stmatrix.sync.aligned.m16n8.x2.trans.shared::cta.b8 [%0], {%1, %2};" '
        ':: "r"(row), "r"(m[0]), "r"(m[1])); __syncwarp(); s[0] = tile[4 * t];'
    ),
    "256 bits": WIDE,
    "256 bits under a predicate": NOTHING,
}
DATA_CENTER = {
    "random e2m1": one(
        f"cvt_rs_satfinite_x4<{F}E2M1>(four, w[5])",
        "{ .reg .b16 d; cvt.rs.satfinite.e2m1x4.f32 d, {%1, %2, %3, %4}, %5; cvt.u32.u16 %0, d; }",
        f'{XY}, "f"(four[2]), "f"(four[3]), "r"(w[5])',
    ),
    "random e4m3": one(
        f"cvt_rs_satfinite_x4<{F}E4M3, true>(four, w[5])",
        "cvt.rs.relu.satfinite.e4m3x4.f32 %0, {%1, %2, %3, %4}, %5;",
        f'{XY}, "f"(four[2]), "f"(four[3]), "r"(w[5])',
    ),
    "random bf16": one(
        "cvt_rs_satfinite_bf16x2(x, y, w[5])",
        "cvt.rs.satfinite.bf16x2.f32 %0, %1, %2, %3;",
        f'{XY}, "r"(w[5])',
    ),
    "random f16": one(
        "cvt_rs_satfinite_f16x2<true>(x, y, w[5])",
        "cvt.rs.relu.satfinite.f16x2.f32 %0, %1, %2, %3;",
        f'{XY}, "r"(w[5])',
    ),
    "redux": one(
        "redux_sync_f32<true, true, false>(x, ~0u)",
        "redux.sync.max.abs.f32 %0, %1, -1;",
        '"f"(x)',
        "f",
    ),
}
A_SCALE, B_SCALE = "MmaScale<2, 1>{w[13]}", "MmaScale<0, 3>{w[14]}"
SPARSE = "mma.sp::ordered_metadata.sync.aligned"
WORKSTATION = {
    "f8f6f4": sums(
        f"mma_f8f6f4<{F}E4M3, {F}E2M1>(z, a, b2)",
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e2m1.f32",
        "",
    ),
    "sparse f8f6f4 to halves": sums(
        f"mma_f8f6f4<{F}E5M2, {F}E3M2>(z, a, b, e)",
        f"{SPARSE}.m16n8k64.row.col.kind::f8f6f4.f16.e5m2.e3m2.f16",
        "",
        "r",
    ),
    "mxf8f6f4": sums(
        f"mma_mxf8f6f4<{F}E2M3, {F}E4M3>(z, a, b2, {A_SCALE}, {B_SCALE})",
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
        ".f32.e2m3.e4m3.f32.ue8m0",
        "2, 1,0, 3",
    ),
    "sparse mxf8f6f4": sums(
        f"mma_mxf8f6f4<{F}E2M3, {F}E4M3>(z, a, b, e, {A_SCALE}, {B_SCALE})",
        f"{SPARSE}.m16n8k64.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
        ".f32.e2m3.e4m3.f32.ue8m0",
        "2, 1,0, 3",
    ),
    "mxf4": sums(
        f"mma_mxf4<false>(z, a, b2, {A_SCALE}, {B_SCALE})",
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X"
        ".f32.e2m1.e2m1.f32.ue8m0",
        "2, 1,0, 3",
    ),
    "sparse nvf4": sums(
        f"mma_mxf4<true>(z, a, b, e, MmaScale<0, 1>{{w[13]}}, {B_SCALE})",
        f"{SPARSE}.m16n8k128.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"
        ".f32.e2m1.e2m1.f32.ue4m3",
        "0, 1,0, 3",
    ),
}
OF_CHIPS = {
    "sm_90a": {"m8n8k4": QUADS},
    "sm_100a": {**BLACKWELL, **DATA_CENTER},
    "sm_120a": {**BLACKWELL, **WORKSTATION},
}
CASES = [(arch, name) for arch, bodies in OF_CHIPS.items() for name in bodies]


def words() -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    rng = np.random.default_rng(51)
    # 32 bytes are read at once: the array begins at a multiple of them.
    found: np.ndarray[tuple[int, int], np.dtype[np.uint32]] = aligned((32, 16), np.uint32)
    found[:] = rng.integers(0, 1 << 32, (32, 16), np.uint64).astype(np.uint32)
    found[:, :4] = rng.normal(0, 2, (32, 4)).astype(np.float32).view(np.uint32)
    found[:, 12] = rng.choice([0x44444444, 0xEEEEEEEE, 0x94D6C8E4], 32)
    found[:, 13:15] = rng.integers(120, 127, (32, 2, 4), np.uint8).view(np.uint32)[..., 0]
    return found


@pytest.mark.parametrize(("arch", "name"), CASES)
def test_a_function_is_its_instruction(arch: str, name: str) -> None:
    text = SOURCE.replace("BODIES", chosen(OF_CHIPS[arch].values()))
    given = words()
    out = aligned((2, 32, 8), np.uint32)

    Kernel(text, "both", arch=arch)(1, 32, (given, out, [*OF_CHIPS[arch]].index(name)))

    assert out[0].any()
    assert out[0].tolist() == out[1].tolist()


@pytest.mark.parametrize(
    ("arch", "name", "words_"),
    [
        (
            "sm_90a",
            "add",
            r"an instruction of f32x2 is of sm_100a, .* sm_90a\. Use the instruction",
        ),
        ("sm_90a", "e2m3", r"cvt of these types is of sm_100a, .* for sm_90a\. Use the functions"),
        ("sm_90a", "stmatrix", r"a matrix of bytes is of .* for sm_90a\. Use the forms of m8n8"),
        ("sm_90a", "256 bits", r"256 bits is of .* for sm_90a\. Use two instructions of 128"),
        ("sm_120a", "random f16", r"cvt\.rs is of sm_100a and sm_103a, .* sm_120a\. Use cvt\.rn,"),
        ("sm_120a", "redux", r"redux\.sync of floats is of .* sm_120a\. Use shfl\.sync\.bfly"),
        ("sm_100a", "mxf4", r"mma\.sync with a kind is of sm_120a, .* sm_100a, .* Use tcgen05"),
    ],
)
def test_a_chip_without_it_refuses_the_call(arch: str, name: str, words_: str) -> None:
    body = {**BLACKWELL, **DATA_CENTER, **WORKSTATION}[name].partition("asm")[0]
    body = body.partition(" u32 d;")[0].partition(" float d;")[0]
    text = SOURCE.replace("BODIES", body)

    with pytest.raises(CompileError, match=words_):
        Kernel(text, "both", arch=arch)(1, 32, (words(), np.zeros((2, 32, 8), np.uint32), 0))
