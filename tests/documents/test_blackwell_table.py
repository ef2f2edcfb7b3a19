"""The table of Blackwell's instructions is the emulator's; refusals name chip and remedy."""

from __future__ import annotations

import itertools
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from tmaasync import CompileError, Kernel
from tmaasync.emulate.chips import CHIPS
from tmaasync.emulate.chips.instructions import FAMILIES, Family, missing
from tmaasync.emulate.frontend.ptx.refused import REFUSED, Refused

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "blackwell_instructions.py"))


def test_the_document_has_the_table() -> None:
    text = TOOL["DOCUMENT"].read_text()

    assert TOOL["written"](text) == text, "run python tools/blackwell_instructions.py"
    assert text.count("<!-- instructions -->") == 1


def test_the_tests_of_a_row_exist() -> None:
    assert set(TOOL["TESTED_BY"]) == {name for _, name in TOOL["forms"]()}
    for names in TOOL["TESTED_BY"].values():
        first, *others = names.split(", ")
        folder = ROOT / "tests" / "emulate" / Path(first).parent
        assert all((folder / Path(name).name).is_file() for name in (first, *others)), names


def test_spellings_are_of_every_choice() -> None:
    assert sorted(TOOL["spellings"]("x{.a|.b}.(c|d<t:.e>?)")) == sorted(
        f"x{one}.{other}" for one, other in itertools.product(("", ".a", ".b"), ("c", "d", "d.e"))
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_that_a_chip_lacks_is_refused_with_chip_and_remedy(family: Family) -> None:
    """By one of the forms that are in the table."""
    if family.name == "wgmma":
        opcode, operands = "wgmma.fence.sync.aligned", 0
    else:
        opcode, operands = TOOL["example"](family)
    for arch, chip in {chip.arch: chip for chip in CHIPS.values()}.items():
        reason = missing(chip, opcode, operands)
        if arch in family.archs:
            assert reason is None
            continue
        assert reason is not None
        assert f"the kernel is compiled for {arch}" in reason
        assert (family.instead or chip.tensor_cores) in reason
        assert f'pass arch="{family.archs[0]}"' in reason


ASM = """
extern "C" __global__ void k(int* x) {
    asm volatile("OPCODE %0, [%1];" : "+r"(x[0]) : "l"(x));
}
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.example)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_form_that_is_refused_everywhere_has_reason_and_remedy(
    refused: Refused, arch: str
) -> None:
    assert re.match(refused.opcodes, refused.example)
    text = ASM.replace("OPCODE", refused.example)
    with pytest.raises(CompileError) as caught:
        Kernel(text, "k", arch=arch)(1, 1, (np.zeros(1, np.int32),))
    message = str(caught.value)
    assert f"`{refused.example}" in message
    assert f"{refused.reason}. {refused.remedy}." in message
