"""The address of a tile in a TMATensorTileArray, which ptxas 12.9 and 13.0 get wrong as a shift."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tmaasync._source.compile import Source, assemble

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"
TILE = "tmaasync::TMATensorTile<float, tmaasync::Shape<32, 64>, tmaasync::Box<32, 64>>"
ACQUIRE = re.compile(r"fence\.proxy\.tensormap::generic\.acquire\.sys \[(%rd\d+)\], 128;")


def made_by(function: str, register: str) -> list[str]:
    """The instructions that write a register, without the names of registers."""
    writes = re.findall(rf"^\s*(\w[\w.]*)\s+{register}, ([^;]+);", function, re.MULTILINE)
    return [f"{name} {operands}" for name, operands in writes]


@pytest.mark.parametrize("is_debug", [False, True])
def test_it_is_a_wide_multiplication_and_an_addition(is_debug: bool) -> None:
    text = f"#include <tmaasync/tmaasync.cuh>\nusing Tile = {TILE};\n{SOURCE.read_text()}"
    options = ("--define-macro=TMAASYNC_DEBUG=1",) if is_debug else ()
    source = Source(text=text, name="peers.cu", options=options)

    functions = assemble(source, "sm_90").ptx.split(".visible .entry ")
    acquired = [(one, register) for one in functions for register in ACQUIRE.findall(one)]

    assert len(acquired) >= 4  # pull, push, and shift both ways
    for function, register in acquired:
        (addition,) = made_by(function, register)
        name, *operands = re.split(r"[ ,]+", addition)
        assert name == "add.s64"
        assert any(
            one.startswith("mul.wide.u32 ")
            for operand in operands
            for one in made_by(function, operand)
        )
