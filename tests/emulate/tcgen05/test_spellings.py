"""Every spelling of tcgen05 that ptxas takes is translated."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulate.tcgen05.spellings import spellings

from tmaasync import CompileError, Kernel
from tmaasync.emulate.frontend.ptx.table import rows_by_family

MODULE = """
.version 9.0
.target {arch}
.address_size 64
.visible .entry k()
{{
    .reg .b64 %rd<9>;
    .reg .b32 %r<256>;
    .reg .f32 %f<256>;
    .reg .b16 %h<9>;
    .reg .pred %p<9>;
    setp.eq.u32 %p8, 1, 1;
    @%p8 bra DONE;
    {body}
DONE:
    ret;
}}
"""
CASES = [(group, family) for group in (1, 2) for family in spellings(group)]


def module(instructions: tuple[str, ...], family: str) -> str:
    arch = "sm_103a" if family == "ld.red" else "sm_100a"
    return MODULE.format(arch=arch, body="\n    ".join(instructions))


def parts(instructions: tuple[str, ...], most: int) -> Iterator[tuple[str, ...]]:
    for first in range(0, len(instructions), most):
        yield instructions[first : first + most]


@pytest.mark.parametrize(("group", "family"), CASES)
def test_a_row_of_the_table_has_every_spelling(group: int, family: str) -> None:
    rows = rows_by_family()["tcgen05"]
    opcodes = {one.partition(" ")[0].rstrip(";") for one in spellings(group)[family]}

    assert [one for one in opcodes if not any(row.matcher.fullmatch(one) for row in rows)] == []


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize(("group", "family"), CASES)
def test_ptxas_takes_every_spelling(group: int, family: str, tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    arch = "sm_103a" if family == "ld.red" else "sm_100a"
    command = ["ptxas", f"-arch={arch}", "-O0", str(path), "-o", str(tmp_path / "k.cubin")]
    # ptxas 13.0 fails for a function with several ld.red.
    step, most = (7, 1) if family == "ld.red" else (1, 1000)
    for part in parts(spellings(group)[family][::step], most):
        path.write_text(module(part, family))
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert ran.returncode == 0, ran.stderr[:2000]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("group", "family"), CASES)
def test_spellings_compile_for_the_cpu(group: int, family: str) -> None:
    """One of eleven: others differ in template arguments and numbers."""
    Kernel(module(spellings(group)[family][::11], family), "k")(1, 32, ())


def test_a_form_that_does_not_exist_is_refused() -> None:
    text = module(("tcgen05.cp.cta_group::1.64x128b [%r0], %rd0;",), "others")
    with pytest.raises(CompileError, match=r"tcgen05\.cp\.cta_group::1\.64x128b"):
        Kernel(text, "k")(1, 32, ())
