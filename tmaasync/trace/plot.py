"""Plot a launch, with matplotlib, which is an optional dependency."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tmaasync._kinds import check_flags, is_integer, is_number, shown
from tmaasync._wheels import install_command
from tmaasync.errors import ArgumentError, BackendError
from tmaasync.trace.collector import Collector
from tmaasync.trace.launch import check_trace
from tmaasync.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg")
_LEAST_INCHES, _MOST_INCHES = 8, 200


def plot(
    trace: Trace | Collector | Sequence[Trace],
    path: str | Path | None = None,
    *,
    block: int | Sequence[int] | None = None,
    between: tuple[int, int] | None = None,
    dark: bool = False,
    width: float = 16,
) -> Figure:
    """Draw one block over time: its warps above, the stages of its pipelines below.

    Each lane of warps has rows of its own for its waits, its wgmma, its stores and its loads. Of
    launches that ran together on several devices, each device (or rank) has a group of lanes, and
    arrows lead from the posts of signals to their waits.

    Args:
        trace: A launch, or what `record` kept of one launch; or launches that ran together, one
            of each rank of `Signals` or of each device of `emulate.devices`.
        path: Where to write the picture, as PNG or SVG by its suffix. The same trace always gives
            the same bytes.
        block: Which block, as x, y, z or its number; by default the first into which TMA loads.
        between: From when to when, in the trace's unit; by default from beginning to end.
        dark: True for light ink on a dark page.
        width: Width in inches of 100 pixels, from 8 to 200.

    Raises:
        BackendError: matplotlib is missing.
        ArgumentError: There are no events, no events of this block, or an argument is out of
            range.
    """
    check_target(path)
    check_flags(dark=dark)
    _check_view(width, between)
    launches = _launches(trace)
    launch = launches[0]
    index = _first_block(launch) if block is None else launch.block_index(block)
    place = launch.block_at_index(index)
    for one in launches:
        if not len(one.of(block=place)):
            raise ArgumentError.broken(
                "block",
                place if block is None else block,
                f"the trace of {one.kernel_name} has no events of it",
                f"It has events of {', '.join(map(str, one.blocks[:8]))}",
            )
    # matplotlib is an optional extra: only a picture needs it.
    from tmaasync.trace import figure  # noqa: PLC0415

    target = None if path is None else Path(path)
    return figure.draw(launches, place, target, between, dark, width)


def _check_view(width: float, between: tuple[int, int] | None) -> None:
    if not is_number(width) or not _LEAST_INCHES <= width <= _MOST_INCHES:
        raise ArgumentError.broken(
            "width",
            shown(width),
            f"it must be from {_LEAST_INCHES} to {_MOST_INCHES} inches",
            "Leave it out for 16",
        )
    if between is not None and not _are_two_times(between):
        raise ArgumentError.broken(
            "between",
            shown(between),
            "it must be two times, of which the first is 0 or more and below the second",
            "Pass (0, 1000)",
        )


def _are_two_times(between: object) -> bool:
    times = tuple(between) if isinstance(between, tuple | list) else ()
    return len(times) == 2 and all(map(is_integer, times)) and 0 <= times[0] < times[1]


def check_target(path: str | Path | None) -> None:
    """Check that matplotlib is there and can write a file of this suffix.

    Raises:
        BackendError: matplotlib is missing.
        ArgumentError: The suffix is another one.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BackendError(
            "plot draws with matplotlib, which is not installed. "
            f"Install it with: {install_command('plot')}."
        )
    if path is not None and not isinstance(path, str | os.PathLike):
        rule, remedy = "it must be the path of a picture", "Pass a name with .png or .svg"
        raise ArgumentError.broken("path", shown(path), rule, remedy)
    if path is not None and Path(path).suffix.lower() not in _SUFFIXES:
        raise ArgumentError.broken(
            "path", f"{str(path)!r}", f"its suffix must be {' or '.join(_SUFFIXES)}", "Pass one"
        )


def _launches(trace: Trace | Collector | Sequence[Trace]) -> tuple[Trace, ...]:
    """Return one launch, or one of each device."""
    if isinstance(trace, list | tuple):
        for one in trace:
            check_trace(one, Trace)
        launches = tuple(trace)
    else:
        check_trace(trace, Trace | Collector)
        launches = trace.launches if isinstance(trace, Collector) else (trace,)
    peers = {one.peer for one in launches}
    are_peers = None not in peers and len({one.unit for one in launches}) == 1
    if len(launches) > 1 and are_peers and len(peers) == len(launches):
        launches = tuple(sorted(launches, key=lambda one: one.peer or 0))
    elif len(launches) != 1:
        raise ArgumentError(
            f"trace has {len(launches)} launches; a picture shows one, or one of each rank or "
            "emulated device. "
            + ("Pass one of trace.launches." if launches else "Launch a kernel inside the with.")
        )
    for one in launches:
        if not len(one):
            raise ArgumentError(
                f"trace of {one.kernel_name} has no events. Pass one that has some."
            )
    return launches


def _first_block(trace: Trace) -> int:
    loads = trace.of(kind="load_landed").blocks
    return min(map(trace.block_index, loads or trace.blocks))
