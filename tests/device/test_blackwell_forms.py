"""Each function of `ptx/` for Blackwell becomes the instruction that its parameters name."""

from __future__ import annotations

import re

import pytest
from bodies import chosen
from emulate.test_blackwell_headers import OF_CHIPS, SOURCE

from tmaasync import CompileError
from tmaasync._source.compile import Source, assemble

TEXT = """
#include <tmaasync/ptx/tcgen05_mma.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

extern "C" __global__ void forms(u32* words, u64 a, u64 b, u32 d, u32 in_a, u32 i, u32 e) {
    const bool p = words[0];
    const u32 four[4] = {words[1], 2, 3, 4}, eight[8] = {words[1], 2, 3, 4, 5, 6, 7, 8};
    (void)four, (void)eight, (void)p;
    CALLS
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


ASM = re.compile(r'asm volatile\((?:"[^"]*"|[^"])*?\);')
OPCODE = re.compile(r"\b(?:cvt|add|mul|fma|ldmatrix|stmatrix|redux|mma)\.[\w.:]+")
MOVES = {"cvt.u32.u16", "cvt.u16.u32"}  # between registers of two sizes, around an instruction
CHIPS = {**OF_CHIPS, "sm_103a": OF_CHIPS["sm_100a"]}


def without_asm(body: str) -> str:
    """Return a body with the call of the function alone."""
    return ASM.sub("memset(&d, 0, sizeof(d));" if re.search(r"\bd[;\[]", body) else "", body)


def opcodes_of(body: str) -> set[str]:
    return {one for text in ASM.findall(body) for one in OPCODE.findall(text)} - MOVES


def compiled_body(body: str, arch: str) -> str:
    source = Source(text=SOURCE.replace("BODIES", body), name="forms.cu")
    assembly = assemble(source, arch)
    assert "warning" not in assembly.log
    return assembly.ptx


@pytest.mark.parametrize("arch", CHIPS)
def test_other_functions(arch: str) -> None:
    """Each is the instruction to which the emulator's tests compare it."""
    bodies = CHIPS[arch]
    opcodes = set().union(*map(opcodes_of, bodies.values()))

    ptx = compiled_body(chosen(map(without_asm, bodies.values())), arch)

    assert opcodes - set(re.findall(r"[\w.:]+", ptx)) == set()
    assert ("ld.global.v8.b32" in ptx) == ("256 bits" in bodies)
    others = OF_CHIPS["sm_100a"] | OF_CHIPS["sm_120a"]
    lacking = next(body for name, body in others.items() if name not in bodies)
    with pytest.raises(CompileError, match=r"not supported|requires|Illegal"):
        compiled_body(without_asm(lacking), arch)
