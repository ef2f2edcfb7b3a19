"""Defects between two devices are found with their cause and place; sound forms are silent."""

from __future__ import annotations

import pytest
from emulate.planted.peers import DEFECTS, NO_BUG, PLAIN_CUDA, SCENARIOS, SOURCE, Defect, run

from tmaasync import EmulatedRace

LINES = SOURCE.read_text().splitlines()


def line_of(text: str) -> str:
    (found,) = (number for number, line in enumerate(LINES, 1) if text in line)
    return f"peers.cu:{found}"


def race_of(defect: Defect, seed: int) -> EmulatedRace | None:
    """The race that a seed shows; None where the run is in order, or only its numbers are wrong."""
    try:
        run(defect.scenario, DEFECTS.index(defect), seed)
    except EmulatedRace as race:
        return race
    except AssertionError:
        pass
    return None


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found_with_its_cause_and_place(defect: Defect) -> None:
    races = [race_of(defect, seed) for seed in range(3 if defect.always else 10)]

    found = [race for race in races if race is not None]
    assert found == races if defect.always else found
    for race in found:
        assert {race.first.device, race.second.device} == {0, 1}
        assert race.memory == "global"
        assert defect.cause in race.cause
        if all(defect.operations):
            assert (race.first.operation, race.second.operation) == defect.operations
        if all(defect.lines):
            places = tuple(map(line_of, defect.lines))
            assert (race.first.source, race.second.source) == places


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_sound_form_is_silent_over_200_seeds(scenario: str) -> None:
    for seed in range(200):
        run(scenario, NO_BUG, seed)


@pytest.mark.parametrize("scenario", ["by_tma", "by_threads"])
def test_flags_in_plain_cuda_are_silent(scenario: str) -> None:
    for seed in range(20):
        run(scenario, PLAIN_CUDA, seed)
