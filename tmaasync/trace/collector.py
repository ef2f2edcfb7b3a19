"""Record launches in a ``with record()``, or load them from a file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from tmaasync._collectors import COLLECTOR, NOTES_PER_WARP
from tmaasync._kinds import is_integer, shown
from tmaasync.errors import ArgumentError
from tmaasync.trace.events import EVENT_DTYPE, Event, NameOf, offset_name
from tmaasync.trace.launch import Extents
from tmaasync.trace.roles import WarpRoles
from tmaasync.trace.saved import BROKEN, arguments_of, document_of
from tmaasync.trace.trace import Trace


@dataclass(slots=True, eq=False)
class Collector:
    """The traces of the launches inside a ``with record()``, in their order.

    ``notes_per_warp`` bounds the records of a warp on the GPU; ``latest`` bounds the launches that
    are kept, by default not at all.
    """

    notes_per_warp: int = NOTES_PER_WARP
    latest: int | None = None
    _launches: list[Trace] = field(default_factory=list)

    @property
    def launches(self) -> tuple[Trace, ...]:
        """One trace per launch."""
        return tuple(self._launches)

    @property
    def events(self) -> np.ndarray[Any, Any]:
        """The events of all launches, one after the other."""
        return np.concatenate([np.empty(0, EVENT_DTYPE), *(one.events for one in self._launches)])

    def __len__(self) -> int:
        return sum(map(len, self._launches))

    def __iter__(self) -> Iterator[Event]:
        return (event for launch in self._launches for event in launch)

    def add(
        self,
        kernel_name: str,
        grid: Extents,
        block: Extents,
        cluster: Extents | None,
        raw: bytes | bytearray | memoryview,
        name_of: NameOf | None = None,
        roles: WarpRoles | None = None,
    ) -> Trace:
        """Add the records of a finished launch; ``raw`` is copied."""
        if len(memoryview(raw).cast("B")) % EVENT_DTYPE.itemsize:
            raise ArgumentError.broken(
                "raw",
                f"{len(memoryview(raw).cast('B'))} bytes",
                f"it must hold whole records of {EVENT_DTYPE.itemsize}",
                "Pass all that the runtime returned",
                verb="has",
            )
        trace = Trace(
            kernel_name=kernel_name,
            grid=grid,
            block=block,
            cluster=cluster or (1, 1, 1),
            events=np.frombuffer(raw, EVENT_DTYPE),
            name_of=name_of or offset_name,
            roles=roles or {},
        )
        self.take(trace)
        return trace

    def take(self, trace: Trace) -> None:
        """Keep the trace of one more launch."""
        self._launches.append(trace)
        if self.latest is not None:
            del self._launches[: -self.latest]

    def to_json(self, *, blocks: int | None = None) -> str:
        """Return the launches, one after the other, as `Trace.to_json`."""
        return document_of(self._launches, blocks)

    def save(self, path: str | Path, *, blocks: int | None = None) -> None:
        """Write `to_json`; open the file with https://ui.perfetto.dev, or with `load`."""
        Path(path).write_text(self.to_json(blocks=blocks), encoding="utf-8")


@contextlib.contextmanager
def record(*, notes_per_warp: int = NOTES_PER_WARP) -> Iterator[Collector]:
    """Record the events of the launches inside the ``with``, on the CPU and on a GPU.

    On a GPU a launch uses a traced build of its kernel, takes longer, and has finished when the
    call returns. Launches with `Signals` return at once: prepare them inside the ``with``, and
    `Signals.synchronize` adds their traces. Launches by other threads and replays of CUDA graphs
    are not recorded.

    Args:
        notes_per_warp: Room of each warp on a GPU, in records of 16 bytes. A wait, an arrival and a
            copy take one each. `Trace.dropped` counts the records that found no room.

    >>> with record() as trace:
    ...     pass  # launches
    >>> len(trace.events), trace.launches
    (0, ())

    Raises:
        ArgumentError: ``notes_per_warp`` is less than 1.
    """
    if not is_integer(notes_per_warp) or notes_per_warp < 1:
        raise ArgumentError.broken(
            "notes_per_warp",
            shown(notes_per_warp),
            "it must be 1 or more",
            f"Leave it out for {NOTES_PER_WARP}",
        )
    collector = Collector(notes_per_warp)
    token = COLLECTOR.set(collector)
    try:
        yield collector
    finally:
        COLLECTOR.reset(token)


current_collector = cast("Callable[[], Collector | None]", COLLECTOR.get)
"""Return the `Collector` of launches in this context; None without one."""


# --- files ------------------------------------------------------------------------------------


def load(path: str | Path) -> Collector:
    """Return the launches of a file that `save` wrote.

    Raises:
        ArgumentError: The file is missing or is not a trace.
    """
    try:
        document = json.loads(Path(path).read_bytes())
        launches = [Trace(**arguments_of(facts)) for facts in document["otherData"]["tmaasync"]]
    except OSError as error:
        raise ArgumentError.broken(
            "path",
            f"{str(path)!r}",
            f"it cannot be read ({error.strerror})",
            "Pass a file that Trace.save wrote",
        ) from None
    except (*BROKEN, ArgumentError, RecursionError):
        raise ArgumentError.broken(
            "path",
            f"{str(path)!r}",
            "it holds no trace of this library",
            "Pass a file that Trace.save wrote",
        ) from None
    kept = Collector()
    for launch in launches:
        kept.take(launch)
    return kept
