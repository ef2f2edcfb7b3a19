"""What is planted for the GPU's report of hangs does hang, on that barrier and line."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from parity.backends import Emulate
from parity.planted_hangs import HANGS, PlantedHangs, line_of

from tmaasync import EmulatedDeadlock
from tmaasync.emulate import scheduled


@functools.cache
def planted() -> PlantedHangs:
    return PlantedHangs(Emulate(), debug=True)


@pytest.fixture(autouse=True)
def without_races() -> Iterator[None]:
    with scheduled(races=False):
        yield


def test_without_a_plant_the_sums_are_right() -> None:
    assert planted().run()


# In these one thread polls for ever, while the others wait.
BUSY = {"ROUND_IN_CIRCLES", "LOOKS_ON", "LOOKS_ALONE"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in HANGS if name not in BUSY])
def test_a_planted_hang_hangs_where_it_should(name: str) -> None:
    hang = HANGS[name]

    with pytest.raises(EmulatedDeadlock) as caught:
        planted().run(name)

    found = {
        (wait.source, (wait.phase or 0) % 2, wait.missing_arrivals, wait.missing_bytes)
        for wait in caught.value.waits
        if wait.barrier_name == hang.barrier
    }
    place = f"kernel.cu:{line_of(hang.code)}"
    assert found == {(place, hang.phase, hang.missing_arrivals, hang.missing_bytes)}
