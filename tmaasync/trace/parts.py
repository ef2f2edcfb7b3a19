"""What a figure shows of one launch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from tmaasync.trace.lanes import Lane, find_lanes
from tmaasync.trace.pipelines import find_pipelines
from tmaasync.trace.rows import Row, lane_rows, stage_rows
from tmaasync.trace.trace import Trace

_Times = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """The lanes and stages of a block of one launch, and their rows."""

    trace: Trace
    lanes: tuple[Lane, ...]
    rows_of_lanes: tuple[tuple[Row, ...], ...]
    stages: tuple[tuple[int, Row], ...]  # each with its full barrier

    @classmethod
    def of(cls, trace: Trace, block: tuple[int, int, int], prefix: str, times: _Times) -> Part:
        """Find the lanes of a block; ``prefix`` comes before their names."""
        pipelines = find_pipelines(trace, block=block)
        # Lanes that load come last, next to the stages, so that arrows are short.
        lanes = sorted(
            find_lanes(trace, block=block, pipelines=pipelines), key=lambda lane: bool(lane.loads)
        )

        def named(row: Row) -> Row:
            return replace(row, lane=prefix + row.lane)

        return cls(
            trace,
            tuple(lanes),
            tuple(tuple(map(named, lane_rows(lane, *times))) for lane in lanes),
            tuple((barrier, named(row)) for barrier, row in stage_rows(pipelines, *times)),
        )

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all lanes."""
        return tuple(itertools.chain.from_iterable(self.rows_of_lanes))
