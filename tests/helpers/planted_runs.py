"""Runs of kernels with and without planted defects, under schedules searched for races."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planted import Defect

from tmaasync import emulate
from tmaasync.emulate.launch.schedule import Policy

__all__ = ["check_reported", "in_orders"]

_SCHEDULES: tuple[tuple[Policy, int], ...] = (("round_robin", 0), ("random", 1), ("adversarial", 2))


def check_reported(defect: Defect, run: Callable[[], object]) -> None:
    """Check that every schedule of a run with the defect reports it."""
    for policy, seed in _SCHEDULES:
        with (
            emulate.scheduled(policy, seed=seed, races=True),
            pytest.raises(defect.reported, match=defect.says),
        ):
            run()


def in_orders(count: int, run: Callable[[], object]) -> None:
    """Run under random and adversarial schedules."""
    for seed in range(count):
        with emulate.scheduled("adversarial" if seed % 2 else "random", seed=seed, races=True):
            run()
