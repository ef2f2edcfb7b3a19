"""The instructions that the rules of wgmma allow are assembled; no other compiles."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tmaasync import CompileError
from tmaasync._source.compile import Program, Source, compile_source
from tmaasync.wgmma import MMA_FORMS, MmaForm

NAMES = {
    "float16": "kF16",
    "bfloat16": "kBF16",
    "tfloat32": "kTF32",
    "float8_e4m3fn": "kE4M3",
    "float8_e5m2": "kE5M2",
    "int8": "kS8",
    "uint8": "kU8",
}
REGISTERS = {"float32": "float", "float16": "u32", "int32": "int"}
HEADER = """
#include <tmaasync/ptx/wgmma.cuh>
#include <tmaasync/ptx/wgmma_mma.cuh>
using namespace tmaasync::ptx;
using tmaasync::u32;
using tmaasync::u64;
"""
ENTRY = """
extern "C" __global__ void multiply_{register}_{count}({register}* p, u64 a, u64 b) {{
    {register} d[{count}] = {{}};
    const u32 held[4] = {{threadIdx.x, 1, 2, 3}};
    wgmma_fence();
    {calls}
    wgmma_commit_group();
    wgmma_wait_group<0>();
    for (int i = 0; i < {count}; ++i) p[i * 128 + threadIdx.x] = d[i];
}}
"""


def calls(form: MmaForm, n: int) -> Iterator[str]:
    """One call per source of A. Transposes and the signs of the scales vary with the columns.

    They are letters and constants in the one text that the header has for each number of columns.
    """
    types = f"MmaType::{NAMES[form.a]}, MmaType::{NAMES[form.b]}"
    turn = n // 8
    a_bit, b_bit = (turn & 1, turn >> 1 & 1) if form.has_transposes else (0, 0)
    scales = [-1 if form.has_scales and turn >> place & 1 else 1 for place in (2, 3)]
    signs = f"{scales[0]}, {scales[1]}"
    yield f"wgmma_mma_async_ss<{types}, {a_bit}, {b_bit}, {signs}>(d, a, b, 1);"
    yield f"wgmma_mma_async_rs<{types}, {b_bit}, {signs}>(d, held, b, 1);"


def compiled(entries: str) -> Program:
    return compile_source(Source(text=HEADER + entries, name="wgmma.cu"), "sm_90a")


@pytest.mark.slow
def test_every_form_and_every_number_of_columns_is_assembled() -> None:
    """The header has one text for each number of columns, in which the types are letters."""
    by_sums: dict[tuple[str, int], list[str]] = defaultdict(list)
    for index, form in enumerate(MMA_FORMS):
        of_its_own = index % len(form.columns)
        for place, n in enumerate(form.columns):
            key = REGISTERS[form.accumulator], form.registers(n)
            if key not in by_sums or place == of_its_own:
                by_sums[key].extend(calls(form, n))
    entries = [
        ENTRY.format(register=register, count=count, calls="\n    ".join(lines))
        for (register, count), lines in by_sums.items()
    ]

    program = compiled("".join(entries))

    assert len(program.entries) == 2 * 32 + 18
    assert program.warnings == ()
    assert all(entry.spill_bytes == 0 for entry in program.entries.values())


@pytest.mark.parametrize(
    ("register", "count", "call", "said"),
    [
        ("float", 4, "ss<MmaType::kF16, MmaType::kBF16>(d, a, b, 1)", "wgmma mixes e4m3 with"),
        ("u32", 2, "ss<MmaType::kBF16, MmaType::kBF16>(d, a, b, 1)", "accumulators are float, u32"),
        ("float", 4, "ss<MmaType::kS8, MmaType::kS8>(d, a, b, 1)", "accumulators are float, u32"),
        ("float", 4, "ss<MmaType::kTF32, MmaType::kTF32, 1>(d, a, b, 1)", "only bf16 and fp16"),
        ("int", 4, "rs<MmaType::kS8, MmaType::kU8, 1>(d, held, b, 1)", "only bf16 and fp16"),
        ("float", 4, "ss<MmaType::kF16, MmaType::kF16, 0, 0, 2>(d, a, b, 1)", "by 1 or by -1"),
        ("int", 4, "ss<MmaType::kS8, MmaType::kS8, 0, 0, -1>(d, a, b, 1)", "have no scale"),
        ("int", 20, "ss<MmaType::kS8, MmaType::kS8>(d, a, b, 1)", "no instance of"),
    ],
)
def test_an_instruction_that_does_not_exist_is_not_compiled(
    register: str, count: int, call: str, said: str
) -> None:
    line = f"wgmma_mma_async_{call};"

    with pytest.raises(CompileError) as caught:
        compiled(ENTRY.format(register=register, count=count, calls=line))

    assert said in re.sub(r"\s+", " ", caught.value.log)
