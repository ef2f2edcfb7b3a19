"""Defects planted in kernels in the style of guides and public code: reported, with their lines."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulate.guide_defects import DEFECTS, RELEASED, planted, text_of
from parity.guide_samples import SAMPLES, Launch
from planted import Defect, lines_named

from tmaasync.emulate import scheduled
from tmaasync.errors import TMAError


def run(defect: Defect) -> Launch:
    launch = SAMPLES[defect.kernel](np.copy)
    with scheduled(races=True):
        planted(defect.kernel, defect)(
            launch.grid, launch.block, launch.arguments, **launch.options
        )
    return launch


@pytest.mark.sampled(6)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.key)
def test_a_defect_is_reported_at_the_users_line(defect: Defect) -> None:
    with pytest.raises(TMAError) as caught:
        run(defect)

    report = str(caught.value)
    assert (type(caught.value),) == defect.reported, report
    assert re.search(defect.says, report, re.DOTALL), report
    named = lines_named(defect.plant(text_of(defect.kernel)), report)
    assert any(defect.line in line for line in named), (report, named)


def test_a_fence_in_one_direction_makes_writes_visible_to_tma() -> None:
    launch = run(RELEASED)

    np.testing.assert_array_equal(launch.result, launch.expected)
