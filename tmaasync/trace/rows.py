"""Rows of a timeline: for each lane its waits, its MMAs, its stores and its loads; each stage."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tmaasync._source.names import ring_part
from tmaasync.trace.lanes import Activity, Lane, LaneSpan, packed
from tmaasync.trace.pipelines import Pipeline, StageState

_MOST_STORE_ROWS = 4
_LANE_GAP = 0.35  # In rows, between lanes
_GROUP_GAP = 0.9  # between devices
_BAR_HEIGHT = 0.82


@dataclass(frozen=True, slots=True)
class Bar:
    """One state from ``begin`` to before ``end``; ``labels`` start with the longest."""

    begin: int
    end: int
    state: Activity | StageState
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Bars that do not overlap. ``lane`` names the warps or the stage, ``name`` the row's content.

    ``loads`` are the time and the sequence of each load that is issued here.
    """

    lane: str
    name: str
    bars: tuple[Bar, ...] = ()
    loads: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows from above to below: the middle of each, and the height of all, in rows."""

    rows: tuple[Row, ...]
    middles: tuple[float, ...]
    height: float

    @classmethod
    def of(cls, groups: Iterable[Iterable[Row]], row_height: float) -> Panel:
        """Stack the rows, with a gap between lanes, and a wider one between groups of lanes."""
        rows: list[Row] = []
        middles: list[float] = []
        bottom = 0.0
        for group in groups:
            gap = _GROUP_GAP if rows else 0.0
            for row in group:
                if gap == 0.0 and rows and rows[-1].lane != row.lane:
                    gap = _LANE_GAP
                middles.append(bottom + gap + row_height / 2)
                bottom += gap + row_height
                rows.append(row)
                gap = 0.0
        return cls(tuple(rows), tuple(middles), max(bottom, 1.0))

    @property
    def bar_height(self) -> float:
        """The height of a bar, in rows."""
        return _BAR_HEIGHT * (self.middles[0] * 2 if self.middles else 1.0)


def lane_rows(lane: Lane, begin: int, end: int) -> Iterator[Row]:
    """Yield the rows of a lane; waits, MMAs, stores and loads never share one."""
    spans = [span for span in lane.spans if span.begin < end and span.end > begin]
    waits = [span for span in spans if span.activity.is_wait]
    mmas = [span for span in spans if span.activity is Activity.COMPUTING]
    stores = packed(span for span in spans if span.activity is Activity.STORING)
    if waits:
        yield Row(lane.name, "waits", _bars(waits, begin, end))
    if mmas:
        yield Row(lane.name, mmas[0].name, _bars(mmas, begin, end))
    for number, row in enumerate(_at_most(_MOST_STORE_ROWS, stores)):
        yield Row(lane.name, "" if number else "stores", _bars(row, begin, end))
    loads = tuple(load for load in lane.loads if begin <= load[0] < end)
    if loads:
        yield Row(lane.name, "loads", loads=loads)


def stage_rows(pipelines: Iterable[Pipeline], begin: int, end: int) -> Iterator[tuple[int, Row]]:
    """Yield the full barrier and the row of each stage; a stage always has one of its states."""
    for pipeline in pipelines:
        for index, stage in enumerate(pipeline.stages):
            bars = [Bar(begin, end, StageState.EMPTY)]
            for span in stage.spans:
                bar = Bar(max(span.begin, begin), min(span.end, end), span.state)
                if bar.begin < bar.end:
                    is_filling = span.state in (StageState.FILLING, StageState.LOADED)
                    labels = (f"phase {span.phase}", str(span.phase)) if is_filling else ()
                    bars.append(Bar(bar.begin, bar.end, bar.state, labels))
            yield stage.full, Row(pipeline.stage_name(index), "", _disjoint(bars))


def _bars(spans: Iterable[LaneSpan], begin: int, end: int) -> tuple[Bar, ...]:
    return _disjoint(
        [
            Bar(max(span.begin, begin), min(span.end, end), span.activity, _labels(span))
            for span in spans
        ]
    )


def _labels(span: LaneSpan) -> tuple[str, ...]:
    """Return the span's name, then its ring and stage; of an element of an array the index."""
    if span.activity is Activity.COMPUTING:
        return ()  # The row is named already.
    part = ring_part(span.name)
    if part is not None:
        ring = part.ring.rpartition(".")[2]
        return (span.name, *([f"{ring}[{part.stage}]"] if ring else []), f"[{part.stage}]")
    _, bracket, element = span.name.partition("[")
    return (span.name, bracket + element) if bracket else (span.name,)


def _at_most(count: int, rows: Sequence[tuple[LaneSpan, ...]]) -> Iterator[tuple[LaneSpan, ...]]:
    """Yield these rows; the last one takes the spans of all that are too many."""
    yield from rows[: count - 1]
    if rows[count - 1 :]:
        yield tuple(span for row in rows[count - 1 :] for span in row)


def _disjoint(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """Cut bars that overlap, the later one on top; only the longest piece keeps the labels."""
    pieces: dict[int, list[tuple[int, int]]] = {}
    for number, begin, end in _visible(bars):
        mine = pieces.setdefault(number, [])
        if mine and mine[-1][1] == begin:
            begin = mine.pop()[0]
        mine.append((begin, end))
    found = []
    for number, parts in pieces.items():
        longest = max(parts, key=lambda part: part[1] - part[0])
        for part in parts:
            labels = bars[number].labels if part is longest else ()
            found.append(Bar(*part, bars[number].state, labels))
    return tuple(sorted(found, key=lambda bar: bar.begin))


def _visible(bars: Sequence[Bar]) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of the topmost bar between any two moments."""
    moments = sorted({moment for bar in bars for moment in (bar.begin, bar.end)})
    order = sorted(range(len(bars)), key=lambda number: bars[number].begin)
    opened: list[tuple[int, int]] = []  # Latest begin first.
    following = iter([*order, None])
    number = next(following)
    for begin, end in itertools.pairwise(moments):
        while number is not None and bars[number].begin <= begin:
            heapq.heappush(opened, (-bars[number].begin, -number))
            number = next(following)
        while opened and bars[-opened[0][1]].end <= begin:
            heapq.heappop(opened)
        if opened:
            yield -opened[0][1], begin, end
