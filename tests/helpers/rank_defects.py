"""Checks of the defects that are planted in kernels of several ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from planted import DEADLOCK, FAULT, RACE, Defect
from worlds import world_of

from tmaasync.emulate.launch.schedule import Policy
from tmaasync.emulate.launch.world import World
from tmaasync.ops._operation import tile_configs

RANKS = 2
REPORTED = DEADLOCK + FAULT + RACE
_ORDERS: list[tuple[Policy, int]] = [("round_robin", 0), ("random", 0)]

Run = Callable[[World], None]


def outcome(run: Run, config: Any, policy: Policy, seed: int) -> Exception | None:
    """Return what calls on a new world raise; GEMMs have the tile config."""
    try:
        with (
            world_of(RANKS, seed, policy) as world,
            tile_configs(lambda chosen: config if hasattr(chosen, "block_n") else chosen),
        ):
            run(world)
    except REPORTED as error:
        return error
    return None


def check_reports(defect: Defect, run: Run, config: Any) -> None:
    """Check that the defect is reported whatever the order, or in some orders."""
    errors = [outcome(run, config, *order) for order in _ORDERS]

    reported = [error for error in errors if error is not None]
    assert reported if defect.some_orders else None not in errors
    for error in reported:
        assert isinstance(error, defect.reported), error
        assert re.search(defect.says, str(error)), error


def check_silence(run: Run, config: Any) -> None:
    """Check that nothing is reported; `make false-alarms` tries 200 seeds."""
    for seed in range(2):
        assert outcome(run, config, "random", seed) is None
