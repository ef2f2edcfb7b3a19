"""Random single instructions through the whole emulator, against what the H200 did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from parity.random_copies import DIGEST_CHARACTERS, LOAD, STORE, Case, case, run

from tmaasync import TensorMapSpec

pytestmark = [pytest.mark.slow, pytest.mark.chips("sm_90a")]

KEPT = json.loads((Path(__file__).parents[1] / "data" / "copies_nvidia_h200.json").read_text())
EVERY = 7


def _is_chosen(one: Case, rank: int) -> bool:
    return one.spec.rank == rank and one.operation in (LOAD, STORE)


# Each rank and operation is a build of seconds; tests/emulate/test_chip_digests.py has them all.
@pytest.mark.parametrize("rank", [2, 5])
def test_an_emulated_instruction_does_what_the_chip_did(rank: int) -> None:
    digests = KEPT["digests"]
    count = len(digests) // DIGEST_CHARACTERS
    numbers = [number for number in range(0, count, EVERY) if _is_chosen(case(number), rank)]

    differing = [
        number
        for number in numbers
        if run(case(number), np, TensorMapSpec.encode)
        != digests[number * DIGEST_CHARACTERS : (number + 1) * DIGEST_CHARACTERS]
    ]

    assert len(numbers) > 40
    assert differing == []
