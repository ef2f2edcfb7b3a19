"""The emulator does what was kept of the chip: tiles, im2col loads, edits of maps, a barrier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity import map_edits, random_columns, tile_digests
from parity.backends import Emulate
from parity.random_copies import DIGEST_CHARACTERS

from tmaasync import Im2colSpec, emulate

pytestmark = pytest.mark.chips("sm_90a")

KEPT = Path(__file__).parents[1] / "data" / "parity_nvidia_h200.json"
EVERY = 16


@pytest.fixture
def kept() -> Any:
    if not KEPT.is_file():
        pytest.skip("not recorded yet: run tools/record_parity.py on an H200")
    return json.loads(KEPT.read_text())


@pytest.mark.slow
def test_random_im2col_loads(kept: Any) -> None:
    digests = kept["columns"]
    count = len(digests) // DIGEST_CHARACTERS

    differing = [
        number
        for number in range(0, count, EVERY)
        if random_columns.run(random_columns.case(number), np, Im2colSpec.encode)
        != digests[number * DIGEST_CHARACTERS : (number + 1) * DIGEST_CHARACTERS]
    ]

    assert differing == []


def test_edited_maps(kept: Any) -> None:
    assert map_edits.edited(Emulate()) == kept["maps"]


def test_bytes_that_land_before_they_are_expected(kept: Any) -> None:
    assert map_edits.landed_first(Emulate()) == kept["landed_first"]


@pytest.fixture(scope="module")
def tiles() -> dict[str, str]:
    # With races, for the kernels are then those that the tests of the same cases have built.
    with emulate.scheduled(races=True):
        return tile_digests.digests(Emulate())


@pytest.mark.slow
def test_whole_tiles(kept: Any, tiles: dict[str, str]) -> None:
    assert "tiles" in kept, f"record it on an H200: tools/record_parity.py writes {KEPT.name}"

    assert tiles == kept["tiles"]


@pytest.mark.slow
def test_a_recording_can_be_made(tiles: dict[str, str]) -> None:
    digests = {
        random_columns.run(random_columns.case(number), np, Im2colSpec.encode)
        for number in range(150)
    }

    assert len(digests) > 140
    assert len(set(map_edits.edited(Emulate()).values())) > 6
    assert len(map_edits.landed_first(Emulate())) == 3
    assert len(set(tiles.values())) > 100
