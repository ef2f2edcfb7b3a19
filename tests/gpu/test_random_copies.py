"""The chip still does what was kept of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parity.random_copies import DIGEST_CHARACTERS, case, run

from tmaasync import _driver

cupy = pytest.importorskip("cupy")

KEPT = json.loads((Path(__file__).parents[1] / "data" / "copies_nvidia_h200.json").read_text())


def test_random_instructions_do_what_was_kept() -> None:
    digests = KEPT["digests"]
    width = DIGEST_CHARACTERS
    kept = [digests[start : start + width] for start in range(0, len(digests), width)]

    now = [run(case(number), cupy, _driver.encode) for number in range(0, len(kept), 20)]

    assert len(kept) == 6000
    assert now == kept[::20]
