"""Defects between two devices are found with their cause and place; sound forms are silent."""

from __future__ import annotations

import re

import pytest
from emulate.planted.peers import DEFECTS, PLAIN, SCENARIOS, SOURCE, Defect, run

from tmaasync import EmulatedRace

LINES = SOURCE.read_text().splitlines()


def line_of(text: str) -> str:
    (found,) = (number for number, line in enumerate(LINES, 1) if text in line)
    return f"peers.cu:{found}"


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found_in_every_order(defect: Defect) -> None:
    for seed in range(3):
        with pytest.raises(EmulatedRace) as caught:
            run(defect.scenario, defect.steps, seed)
        race = caught.value
        assert {race.first.device, race.second.device} == set(defect.devices)
        assert race.memory == "global"
        assert re.search(re.escape(defect.cause), race.cause), race
        if all(defect.operations):
            assert (race.first.operation, race.second.operation) == defect.operations
        if all(defect.lines):
            places = tuple(map(line_of, defect.lines))
            assert (race.first.source, race.second.source) == places


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_sound_form_is_silent_over_200_seeds(scenario: str) -> None:
    for seed in range(200):
        run(scenario, {}, seed)()


@pytest.mark.parametrize("scenario", ["by_tma", "by_threads"])
def test_flags_in_plain_cuda_are_silent(scenario: str) -> None:
    for seed in range(20):
        run(scenario, PLAIN, seed)()
