"""Debug builds on the chip: the line that the kernel says before it traps, and what comes after."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from parity.check_cases import CASES

pytest.importorskip("cupy")

# One check of every header; the emulator's tests have all of them.
SOME = (
    "a mask beyond the cluster",
    "a buffer off its alignment",
    "a store before the array",
    "more bytes than a barrier counts",
    "a tile that is not",
    "an address off its unit",
    "a sequence too long",
    "a column that starts no chunk",
)


def broken(case: str, build: str) -> list[str]:
    """The lines of a process that breaks the rule."""
    script = Path(__file__).with_name("broken_rule.py")
    ran = subprocess.run(
        [sys.executable, str(script), case, build],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    return ran.stdout.splitlines()


@pytest.mark.parametrize("case", SOME)
def test_a_debug_build_says_what_is_wrong_and_traps(case: str) -> None:
    line, outcome, after = broken(case, "debug")

    place, said = "tmaasync: block (1, 0, 0), thread 5: ", CASES[case][1]
    if "0x" in said:  # addresses start elsewhere on the chip
        line, said = (re.sub("0x[0-9a-f]+", "0x", text) for text in (line, said))
    assert line == f"{place}{said}."
    assert outcome == "trapped"
    assert after.startswith("DriverError: an earlier kernel died")
    assert "TMAASYNC_DEBUG=1" in after


def test_a_release_build_says_nothing() -> None:
    assert broken("a rule of one's own", "release") == ["ok"]
    # An index beyond the last tile or signal ends the kernel in any build.
    assert broken("a tile that is not", "release")[0] == "trapped"
    assert broken("a signal that is not", "release")[0] == "trapped"
