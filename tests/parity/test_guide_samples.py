"""Kernels in the style of guides and public code run unchanged on both back ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parity.guide_samples import SAMPLES, kernel

from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy

pytestmark = pytest.mark.chips("sm_90a")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_computes_what_numpy_does(name: str, backend: Any) -> None:
    launch = SAMPLES[name](backend.array)

    with scheduled(races=True):
        kernel(name)(launch.grid, launch.block, launch.arguments, **launch.options)

    np.testing.assert_array_equal(backend.host(launch.result), launch.expected)


POLICIES: tuple[Policy, ...] = ("random", "adversarial")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SAMPLES)
def test_no_schedule_reports_a_sample(name: str) -> None:
    for policy in POLICIES:
        launch = SAMPLES[name](np.copy)
        with scheduled(policy, seed=1, races=True):
            kernel(name)(launch.grid, launch.block, launch.arguments, **launch.options)
        np.testing.assert_array_equal(launch.result, launch.expected)
