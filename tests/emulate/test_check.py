"""Debug builds report a call that breaks a rule, and release builds report nothing."""

from __future__ import annotations

import numpy as np
import pytest
from parity.backends import Emulate
from parity.check_cases import CASES, break_rule, kernel_for, types

from tmaasync import EmulatedFault, Kernel

HOST = Emulate()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_a_debug_build_names_argument_value_and_rule(name: str) -> None:
    _, said = CASES[name]

    with pytest.raises(EmulatedFault) as caught:
        break_rule(HOST, name, debug=True)

    # A shared address has the rank of its CTA, 1, above bit 24.
    assert caught.value.reason.replace("0x10000", "0x").startswith(said)
    assert (caught.value.block, caught.value.thread) == ((1, 0, 0), 5)
    assert caught.value.source is not None


def test_a_release_build_says_nothing() -> None:
    break_rule(HOST, "a rule of one's own", debug=False)

    with pytest.raises(EmulatedFault, match="index is 2; it must be below 2"):
        break_rule(HOST, "a tile that is not", debug=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a sequence too long", "sequence.length is"),
        ("a sequence before the array", "sequence.start is"),
        ("a sequence beyond the array", r"sequence.start \+ length is"),
    ],
)
def test_sequences_are_checked_in_every_build(name: str, words: str) -> None:
    """On a GPU a release build computes with other rows, without a fault."""
    with pytest.raises(EmulatedFault, match=words):
        break_rule(HOST, name, debug=False)


def test_the_lines_are_in_debug_builds_for_the_chip_and_in_no_others() -> None:
    programs = [kernel_for(types(HOST), debug).compile() for debug in (False, True)]
    release, debug = (program.path.read_bytes() for program in programs)

    assert [program.warnings for program in programs] == [(), ()]
    for words in (b"it must be a multiple of", b"vprintf"):
        assert words in debug
        assert words not in release


@pytest.mark.parametrize(
    ("environment", "asked", "is_debug"),
    [("0", None, False), ("1", None, True), ("1", False, False)],
)
def test_the_environment_decides_where_the_caller_does_not(
    monkeypatch: pytest.MonkeyPatch, environment: str, asked: bool | None, is_debug: bool
) -> None:
    monkeypatch.setenv("TMAASYNC_DEBUG", environment)
    source = """
#include <tmaasync/check.cuh>
extern "C" __global__ void build(int* is_debug) { is_debug[0] = 1 + tmaasync::kIsDebug; }
"""
    found = np.zeros(1, np.int32)

    Kernel(source, "build", debug=asked)(1, 1, (found,))

    assert found[0] == 1 + is_debug
