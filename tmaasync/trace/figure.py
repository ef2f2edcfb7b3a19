"""Drawing with matplotlib: lanes of warps above, stages of rings below, one clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Patch

from tmaasync.trace.events import EventKind
from tmaasync.trace.lanes import Activity, Lane, LaneSpan, find_lanes
from tmaasync.trace.rings import Ring, StageState, find_rings
from tmaasync.trace.trace import Trace

__all__ = ["draw"]

# Okabe and Ito's palette for the colour-blind.
_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_YELLOW, _BLUE, _VERMILION, _PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
_INK, _FAINT, _PAPER = "#1f2328", "#8c959f", "#f3f4f6"

_ACTIVITY_COLOURS = {
    Activity.WAITING_FULL: _SKY,
    Activity.WAITING_EMPTY: _YELLOW,
    Activity.WAITING_BARRIER: _PURPLE,
    Activity.WAITING_NAMED: "#c9ced6",
    Activity.WAITING_CLUSTER: "#9aa3ad",
    Activity.WAITING_STORES: "#f2b08a",
    Activity.WAITING: "#dfe3e8",
    Activity.COMPUTING: _GREEN,
    Activity.STORING: _VERMILION,
}
_STATE_COLOURS = {
    StageState.FILLING: _ORANGE,
    StageState.LOADED: "#a8c6dc",
    StageState.FULL: _BLUE,
    StageState.READING: _GREEN,
    StageState.EMPTY: _PAPER,
}
_CLOCKS = {"step": "steps of the cluster's scheduler", "ns": "nanoseconds"}
_ON_DARK = {_BLUE, _GREEN, _VERMILION}
_WIDTH_INCHES, _DPI = 16.0, 100
_LEFT, _RIGHT = 0.085, 0.985
# Inches: above the lanes, between lanes and stages, below the stages, for one stage.
_ABOVE, _BETWEEN, _BELOW = 1.03, 0.72, 0.58
_ROW_INCHES = (0.4, 0.65)
_LANE_ROWS = 1.3  # height of a lane in stages
_USUAL_INCHES = 9.0
_EDGED_PIXELS = 4
_MAX_ARROWS = 64
_MAX_LABELS = 600


def draw(
    trace: Trace,
    block: tuple[int, int, int],
    path: Path | None,
    between: tuple[int, int] | None = None,
) -> Figure:
    """Return the figure of one block, or of a part of its time, written if there is a path."""
    with style.context("default"), mpl.rc_context({"svg.hashsalt": "tmaasync"}):
        picture = _Picture.of(trace, block, between)
        figure = picture.figure()
        if path is not None:
            # Neither the date nor the version: the same trace gives the same bytes.
            is_svg = path.suffix.lower() == ".svg"
            metadata = {"Date": None, "Creator": None} if is_svg else {"Software": None}
            figure.savefig(path, dpi=_DPI, metadata=metadata)
    return figure


def _extent(cluster: Trace) -> tuple[int, int]:
    """Return begin and end of a cluster. On the emulator each has a clock of its own."""
    return 0 if cluster.unit == "step" else int(cluster.events["time"].min()), cluster.end


@dataclass(frozen=True, slots=True)
class _Bar:
    """One rectangle: from ``begin`` to ``end`` in time, around ``middle`` across."""

    begin: int
    end: int
    middle: float
    height: float
    colour: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Picture:
    """The picture of one block."""

    trace: Trace
    block: tuple[int, int, int]
    lanes: tuple[Lane, ...]
    stages: tuple[tuple[Ring, int], ...]
    begin: int
    end: int

    @classmethod
    def of(
        cls, trace: Trace, block: tuple[int, int, int], between: tuple[int, int] | None
    ) -> _Picture:
        rings = find_rings(trace, block=block)
        lanes = find_lanes(trace, block=block, rings=rings)
        # Next to the stages, so that arrows are short.
        lanes = tuple(
            sorted(
                (lane for lane in lanes if lane.spans or lane.loads),
                key=lambda lane: bool(lane.loads),
            )
        )
        stages = tuple((ring, index) for ring in rings for index in range(len(ring.stages)))
        begin, end = between or _extent(trace.of(cluster=trace.cluster_of(block)))
        return cls(trace, block, lanes, stages, begin, max(end, begin + 1))

    def figure(self) -> Figure:
        """Draw both halves and the arrows between them."""
        rows = _LANE_ROWS * max(len(self.lanes), 1), max(len(self.stages), 1)
        height = _height(sum(rows))
        figure = Figure(figsize=(_WIDTH_INCHES, height), dpi=_DPI)
        per_row = (height - _ABOVE - _BETWEEN - _BELOW) / sum(rows)
        warps = figure.add_axes(
            _place(height, rows[1] * per_row + _BELOW + _BETWEEN, rows[0] * per_row)
        )
        stages = figure.add_axes(_place(height, _BELOW, rows[1] * per_row), sharex=warps)
        warps.tick_params(axis="x", length=0, labelbottom=False)
        self._title(figure)
        self._draw_warps(warps)
        self._draw_stages(stages)
        self._draw_arrows(figure, warps, stages)
        return figure

    def _title(self, figure: Figure) -> None:
        grid = " x ".join(map(str, self.trace.grid))
        title = f"{self.trace.kernel_name}: block {self.block} of {grid}"
        top = 1 - 0.34 / figure.get_figheight()
        figure.text(0.012, top, title, fontsize=14, color=_INK, weight="bold", va="center")

    def _draw_warps(self, axes: Axes) -> None:
        bars = [bar for place, lane in enumerate(self.lanes) for bar in _lane_bars(place, lane)]
        _frame(axes, [lane.name for lane in self.lanes], "warps")
        self._draw_bars(axes, bars)
        used = {span.activity for lane in self.lanes for span in lane.spans}
        keys: list[tuple[str, str]] = [
            (activity.value, colour)
            for activity, colour in _ACTIVITY_COLOURS.items()
            if activity in used
        ]
        marks = [
            (time, place)
            for place, lane in enumerate(self.lanes)
            for time, _ in lane.loads
            if self.begin <= time < self.end
        ]
        handles: list[Artist] = [Patch(color=colour, label=label) for label, colour in keys]
        if marks:
            times, places = zip(*marks, strict=True)
            handles += axes.plot(
                times, places, "v", color=_INK, markersize=6, label="issues a load", zorder=5
            )
        _legend(axes, handles)

    def _draw_stages(self, axes: Axes) -> None:
        _frame(axes, [_stage_name(ring, index) for ring, index in self.stages], "stages")
        bars = [
            bar
            for place, (ring, index) in enumerate(self.stages)
            for bar in _stage_bars(place, ring, index, self.begin, self.end)
        ]
        self._draw_bars(axes, bars)
        axes.set_xlim(self.begin, self.end)
        axes.set_xlabel(_CLOCKS[self.trace.unit], color=_INK)
        # States that only the chip or only the emulator shows are in the legend if they occur.
        found = {span.state for ring, index in self.stages for span in ring.stages[index].spans}
        shown = found | {StageState.FILLING, StageState.READING, StageState.EMPTY}
        if self.trace.unit == "step":
            shown |= {StageState.FULL}
        _legend(
            axes,
            [
                Patch(facecolor=colour, edgecolor=_FAINT, linewidth=0.5, label=state.value)
                for state, colour in _STATE_COLOURS.items()
                if state in shown
            ]
            if self.stages
            else [],
        )

    def _draw_bars(self, axes: Axes, bars: Iterable[_Bar]) -> None:
        bars = [
            replace(bar, begin=max(bar.begin, self.begin), end=min(bar.end, self.end))
            for bar in bars
            if bar.begin < self.end and bar.end > self.begin
        ]
        scale = self._pixels_per_step(axes)
        for colour in dict.fromkeys(bar.colour for bar in bars):
            for middle, height in dict.fromkeys((bar.middle, bar.height) for bar in bars):
                spans = [
                    (bar.begin, bar.end - bar.begin)
                    for bar in bars
                    if (bar.colour, bar.middle, bar.height) == (colour, middle, height)
                ]
                axes.broken_barh(
                    spans,
                    (middle - height / 2, height),
                    facecolors=colour,
                    edgecolors="white",
                    # What is thinner would be all edge.
                    linewidth=[0.6 if width * scale > _EDGED_PIXELS else 0 for _, width in spans],
                )
        for bar, label in _fitting(bars, scale):
            axes.text(
                (bar.begin + bar.end) / 2,
                bar.middle,
                label,
                ha="center",
                va="center_baseline",
                fontsize=_LABEL_POINTS,
                color="white" if bar.colour in _ON_DARK else _INK,
            )

    def _pixels_per_step(self, axes: Axes) -> float:
        return _WIDTH_INCHES * _DPI * float(axes.get_position().width) / (self.end - self.begin)

    def _draw_arrows(self, figure: Figure, warps: Axes, stages: Axes) -> None:
        """Draw arrows from the issue of each load to its landing, unless there are too many."""
        arrows = tuple(self._arrows())
        if len(arrows) > _MAX_ARROWS:
            return
        for begin, end in arrows:
            arrow = ConnectionPatch(
                xyA=begin,
                xyB=end,
                coordsA=warps.transData,
                coordsB=stages.transData,
                arrowstyle="-|>,head_length=0.35,head_width=0.16",
                color=_INK,
                alpha=0.45,
                linewidth=0.8,
                shrinkA=3,
                shrinkB=0,
            )
            figure.add_artist(arrow)

    def _arrows(self) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
        issues = {
            sequence: (time, place)
            for place, lane in enumerate(self.lanes)
            for time, sequence in lane.loads
        }
        places = {ring.stages[index].full: place for place, (ring, index) in enumerate(self.stages)}
        for landing in self.trace.of(block=self.block, kind=EventKind.LOAD_LANDED).events:
            issue = issues.get(int(landing["sequence"]))
            place = places.get(int(landing["barrier"]))
            if issue is not None and place is not None and self.begin <= issue[0] < self.end:
                yield issue, (int(landing["time"]), place - _STAGE_HEIGHT / 2)


# --- bars and their labels --------------------------------------------------------------------

_LANE_HEIGHT, _STAGE_HEIGHT = 0.78, 0.76
_LABEL_POINTS = 8
_CHARACTER_PIXELS = 0.62 * _LABEL_POINTS * _DPI / 72


def _lane_bars(place: int, lane: Lane) -> Iterator[_Bar]:
    """Yield waits in the upper part of the lane, and below them the work that overlaps them."""
    has_work = any(not span.activity.is_wait for span in lane.spans)
    for span in lane.spans:
        if not span.activity.is_wait or span.activity is Activity.COMPUTING:
            middle, height = place + 0.22, 0.34
        elif has_work:
            middle, height = place - 0.17, 0.44
        else:
            middle, height = float(place), _LANE_HEIGHT
        colour = _ACTIVITY_COLOURS[span.activity]
        yield _Bar(span.begin, span.end, middle, height, colour, _labels(span))


def _labels(span: LaneSpan) -> tuple[str, ...]:
    """Return a span's name, or at least its element."""
    _, bracket, element = span.name.rpartition("[")
    return (span.name, bracket + element) if bracket else (span.name,)


def _stage_bars(place: int, ring: Ring, index: int, begin: int, end: int) -> Iterator[_Bar]:
    yield _Bar(begin, end, float(place), _STAGE_HEIGHT, _STATE_COLOURS[StageState.EMPTY])
    for span in ring.stages[index].spans:
        filling = span.state in (StageState.FILLING, StageState.LOADED)
        labels = (f"phase {span.phase}", str(span.phase)) if filling else ()
        colour = _STATE_COLOURS[span.state]
        yield _Bar(span.begin, span.end, float(place), _STAGE_HEIGHT, colour, labels)


def _fitting(bars: Iterable[_Bar], pixels_per_step: float) -> Iterator[tuple[_Bar, str]]:
    """Yield each bar with the first of its labels that has room in it."""
    labelled = 0
    for bar in bars:
        room = (bar.end - bar.begin) * pixels_per_step / _CHARACTER_PIXELS
        label = next((label for label in bar.labels if len(label) + 1 <= room), None)
        if label is not None and labelled < _MAX_LABELS:
            labelled += 1
            yield bar, label


def _stage_name(ring: Ring, index: int) -> str:
    if len(ring.stages) == 1:
        return ring.name
    return f"{ring.name}, stage {index}" if " " in ring.name else f"{ring.name}[{index}]"


# --- axes -------------------------------------------------------------------------------------


def _height(rows: float) -> float:
    """Return the usual height, less where few rows would be fat, more where many would be thin."""
    margins = _ABOVE + _BETWEEN + _BELOW
    thin, fat = (margins + rows * inches for inches in _ROW_INCHES)
    return round(min(fat, max(_USUAL_INCHES, thin)) * _DPI) / _DPI


def _place(height: float, bottom: float, inches: float) -> tuple[float, float, float, float]:
    return _LEFT, bottom / height, _RIGHT - _LEFT, inches / height


def _frame(axes: Axes, names: Sequence[str], what: str) -> None:
    """One row per name, from above; no more ink than that."""
    axes.set_ylim(max(len(names), 1) - 0.45, -0.55)
    axes.set_yticks(range(len(names)), names, color=_INK)
    axes.set_title(what, loc="left", fontsize=11, color=_INK, pad=6)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", colors=_FAINT, labelcolor=_INK)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#e3e6ea", linewidth=0.8)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)


def _legend(axes: Axes, handles: Sequence[Artist]) -> None:
    if handles:
        axes.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(1.0, 0.995),
            ncols=len(handles),
            frameon=False,
            fontsize=9,
            handlelength=1.2,
            columnspacing=1.4,
            borderaxespad=0.2,
        )
