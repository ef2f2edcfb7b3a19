"""Defects planted in small kernels are reported by a launch without options."""

from __future__ import annotations

import contextvars

import pytest
from emulate.planted.defects import DEFECTS, SOUND
from emulate.planted.kernels import KERNELS, builder_of
from emulate.planted.outcomes import Outcome, outcome, schedules, with_defect
from planted import Defect

from tmaasync.emulate import scheduled

# Found without the build that checks ordinary accesses, too: instructions alone show them.
OTHER_BUILD = [
    defect
    for defect in DEFECTS
    if defect.kernel in ("pipe", "wsgemm") and defect.kind == "arrivals"
]


def reported(defect: Defect) -> Outcome:
    """Return what a user sees who passes no option, or who tries a few schedules then."""
    found = contextvars.Context().run(outcome, defect)
    for schedule in schedules():
        if found.is_found:
            break
        with scheduled(**schedule):
            found = outcome(defect)
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernel", KERNELS)
def test_without_a_defect_nothing_is_reported(kernel: str) -> None:
    for races in (False, True):
        job = KERNELS[kernel]()
        with scheduled(races=races, policy="random"):
            job.run(builder_of(kernel))
        assert job.is_right()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edit", SOUND, ids=lambda edit: edit.key)
def test_what_only_looks_like_a_defect_is_not_reported(edit: Defect) -> None:
    for schedule in schedules():
        job = KERNELS[edit.kernel]()
        with scheduled(**schedule):
            job.run(with_defect(edit))
        assert job.is_right(), schedule


@pytest.mark.sampled(9)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.key)
def test_a_defect_is_reported_with_its_class_its_line_and_a_remedy(defect: Defect) -> None:
    found = reported(defect)

    assert found.has_class, found.error
    assert found.has_line, (defect.line, found.error, found.lines)
    assert found.has_words, (defect.says, found.error)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("defect", OTHER_BUILD, ids=lambda defect: defect.key)
def test_a_wrong_number_of_arrivals_needs_no_record_of_accesses(defect: Defect) -> None:
    with scheduled(races=False):
        found = outcome(defect)

    assert found.has_class, found.error
