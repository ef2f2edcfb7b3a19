"""Arrows of a figure: from loads to their landings, and from posts of signals to their waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tmaasync._hardware import WARP_THREADS
from tmaasync.trace.events import EventKind
from tmaasync.trace.parts import Part
from tmaasync.trace.rows import Panel

_Place = tuple[float, float]
Arrow = tuple[_Place, _Place]
"""Time and row of both ends."""


@dataclass(frozen=True, slots=True)
class Arrows:
    """The arrows between the rows of one block of each launch."""

    parts: tuple[Part, ...]
    block: tuple[int, int, int]
    warps: Panel
    stages: Panel
    begin: int
    end: int

    def issues(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Return where each load is issued: launch and sequence to time and row."""
        numbers = (number for number, part in enumerate(self.parts) for _ in part.rows)
        return {
            (number, sequence): (time, middle)
            for number, row, middle in zip(
                numbers, self.warps.rows, self.warps.middles, strict=True
            )
            for time, sequence in row.loads
        }

    def of_loads(self) -> Iterator[Arrow]:
        """Yield issue and landing of each load."""
        issues = self.issues()
        middles = iter(self.stages.middles)
        top = self.stages.bar_height / 2
        for number, part in enumerate(self.parts):
            middle_of = {barrier: next(middles) for barrier, _ in part.stages}
            landings = part.trace.of(block=self.block, kind=EventKind.LOAD_LANDED).events
            for landing in landings:
                issue = issues.get((number, int(landing["sequence"])))
                middle = middle_of.get(int(landing["barrier"]))
                if issue is not None and middle is not None:
                    yield issue, (int(landing["time"]), middle - top)

    def of_signals(self) -> Iterator[Arrow]:
        """Yield post and end of the wait of each signal between the blocks that are shown."""
        posted = dict(self._places(EventKind.SIGNAL_POSTED))
        for sequence, place in self._places(EventKind.SIGNAL_WAIT_END):
            if sequence in posted:
                yield posted[sequence], place

    def _places(self, kind: EventKind) -> Iterator[tuple[int, tuple[int, float]]]:
        """Yield the sequence, the time and the first row of the warp of each event."""
        middles = iter(self.warps.middles)
        for part in self.parts:
            row_of: dict[int, float] = {}
            for lane, rows in zip(part.lanes, part.rows_of_lanes, strict=True):
                found = [next(middles) for _ in rows]
                row_of |= dict.fromkeys(lane.warps, found[0]) if found else {}
            for event in part.trace.of(block=self.block, kind=kind).events:
                time, warp = int(event["time"]), int(event["thread"]) // WARP_THREADS
                if warp in row_of and self.begin <= time <= self.end:
                    yield int(event["sequence"]), (time, row_of[warp])
