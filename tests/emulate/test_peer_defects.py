"""Defects between two devices are found with their cause and place; sound forms are silent."""

from __future__ import annotations

import pytest
from emulate.planted.peers import DEFECTS, NO_BUG, PLAIN_CUDA, SCENARIOS, SOURCE, RaceOfPeers, run

from tmaasync import EmulatedRace

SEEDS = 3
LINES = SOURCE.read_text().splitlines()


def line_of(text: str) -> str:
    (found,) = (number for number, line in enumerate(LINES, 1) if text in line)
    return f"peers.cu:{found}"


def race_of(defect: RaceOfPeers, seed: int) -> EmulatedRace:
    with pytest.raises(EmulatedRace) as caught:
        run(defect.kernel, DEFECTS.index(defect), seed)
    return caught.value


@pytest.mark.sampled(2)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found_with_its_cause_and_place(defect: RaceOfPeers) -> None:
    for race in (race_of(defect, seed) for seed in range(SEEDS)):
        devices = {race.first.device, race.second.device}
        assert len(devices) == 1 + defect.between
        assert race.memory == ("global" if defect.between else "shared")
        assert defect.says in race.cause
        if all(defect.operations):
            assert (race.first.operation, race.second.operation) == defect.operations
        if all(defect.lines):
            places = tuple(map(line_of, defect.lines))
            assert (race.first.source, race.second.source) == places


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_sound_form_is_silent_over_many_seeds(scenario: str) -> None:
    for seed in range(40):
        run(scenario, NO_BUG, seed)


@pytest.mark.parametrize("scenario", ["by_tma", "by_threads"])
def test_flags_in_plain_cuda_are_silent(scenario: str) -> None:
    for seed in range(10):
        run(scenario, PLAIN_CUDA, seed)
