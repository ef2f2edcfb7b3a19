"""Reports that several planted defects cause, and rows of defects."""

from __future__ import annotations

from typing import Any

from planted import DEADLOCK, FAULT, RACE, Defect

from tmaasync import ArgumentError, EmulatedTimeout, LaunchError

TIMEOUT = (EmulatedTimeout,)
ARGUMENT = (ArgumentError, LaunchError, TypeError)
EITHER, RACE_OR_FAULT, RACE_OR_DEADLOCK = DEADLOCK + FAULT, RACE + FAULT, RACE + DEADLOCK
ANY = RACE + DEADLOCK + FAULT

PROXY = r"fence_async_view_proxy\(\)"
IN_FLIGHT = r"TMA load to these bytes is in flight"
UNWRITTEN = r"which nothing has written"
OUTSIDE = r"none of the launch's arrays|outside every array"


def rows_of(kernel: str, *rows: tuple[Any, ...]) -> tuple[Defect, ...]:
    """Return defects of rows: kind, name, edit, classes, pattern and line."""
    return tuple(
        Defect(
            kernel, name, edit if isinstance(edit, tuple) else (edit,), reported, says,
            line=more[0] if more else "", kind=kind,
        )
        for kind, name, edit, reported, says, *more in rows
    )  # fmt: skip
