"""Drawing with matplotlib: rows of warps above, stages of pipelines below, one clock."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, Patch

from tmaasync._hardware import WARP_THREADS
from tmaasync.trace.colours import DARK, LIGHT, Theme
from tmaasync.trace.events import EventKind
from tmaasync.trace.figure_text import (
    DPI,
    LABEL_POINTS,
    TEXT_POINTS,
    fitting,
    legend_columns,
    shortened,
    text_pixels,
    wrapped,
)
from tmaasync.trace.lanes import Activity, Lane, find_lanes
from tmaasync.trace.pipelines import StageState, find_pipelines
from tmaasync.trace.rows import Bar, Panel, Row, lane_rows, stage_rows
from tmaasync.trace.trace import Trace

__all__ = ["draw"]

_Times = tuple[int, int]
_Place = tuple[float, float]
_Arrow = tuple[_Place, _Place]

_CLOCKS = {
    "step": "time in steps of the emulator's scheduler",
    "ns": "time in nanoseconds",
}
_CAPTIONS = {
    "step": "Emulated schedule: order and dependencies are real; durations are not. "
    "By default loads complete as late as allowed, so waits look longer than on the GPU.",
    "ns": "Measured on the GPU, by the cycle counter of the SM: exact to a cycle within a block. "
    "Recording takes time too, so compare shares of the time, not run times.",
}

_MARGIN_PIXELS, _GAP_PIXELS = 20, 10
_MOST_NAME_PIXELS = 300
# Inches: above the lanes without their legend, between lanes and stages, below the stages.
_ABOVE, _BETWEEN, _BELOW = 1.0, 0.5, 0.95
_LEGEND_BELOW = 0.47  # From the stages to their legend
_LINE_INCHES = 0.24  # A row of the legend, a line of the caption
_ROW_INCHES = (0.24, 0.42)
_USUAL_INCHES = 9.0
_BAR_HEIGHT = 0.82
_STAGE_ROWS = 1.4  # Height of a stage in rows
_EDGED_PIXELS = 4
_MOST_ARROWS = 64
_TITLE_POINTS, _HEADING_POINTS, _NAME_POINTS = 14, 11, 9.5


def draw(
    launches: Sequence[Trace],
    block: tuple[int, int, int],
    path: Path | None,
    between: tuple[int, int] | None = None,
    dark: bool = False,
    width: float = 16.0,
) -> Figure:
    """Return the figure of one block, or of a part of its time, written if there is a path.

    Of several launches, one of each device, the block of all.
    """
    theme = DARK if dark else LIGHT
    with style.context("default"), mpl.rc_context({"svg.hashsalt": "tmaasync"}):
        figure = _Picture.of(launches, block, between, theme, width).figure()
        if path is not None:
            # Neither the date nor the version: the same trace gives the same bytes.
            is_svg = path.suffix.lower() == ".svg"
            metadata = {"Date": None, "Creator": None} if is_svg else {"Software": None}
            figure.savefig(path, dpi=DPI, metadata=metadata, facecolor=theme.page)
    return figure


def _extent(clusters: Sequence[Trace]) -> tuple[int, int]:
    """Return begin and end of clusters. On the emulator each has a clock of its own."""
    is_step = clusters[0].unit == "step" and len(clusters) == 1
    begin = 0 if is_step else min(int(one.events["time"].min()) for one in clusters)
    return begin, max(one.end for one in clusters)


# --- the picture ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """What the picture shows of one launch."""

    trace: Trace
    lanes: tuple[Lane, ...]
    rows_of_lanes: tuple[tuple[Row, ...], ...]
    stages: tuple[tuple[int, Row], ...]  # each with its full barrier

    @classmethod
    def of(cls, trace: Trace, block: tuple[int, int, int], prefix: str, times: _Times) -> _Part:
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
        return tuple(itertools.chain.from_iterable(self.rows_of_lanes))


@dataclass(frozen=True, slots=True)
class _Picture:
    """The picture of one block of each launch."""

    parts: tuple[_Part, ...]
    block: tuple[int, int, int]
    theme: Theme
    width: float  # In pixels
    warps: Panel
    stages: Panel
    begin: int
    end: int

    @classmethod
    def of(
        cls,
        launches: Sequence[Trace],
        block: tuple[int, int, int],
        between: tuple[int, int] | None,
        theme: Theme,
        width: float,
    ) -> _Picture:
        begin, end = between or _extent(
            [trace.of(cluster=trace.cluster_of(block)) for trace in launches]
        )
        end = max(end, begin + 1)
        names = [f"{one.peer_label}: " if len(launches) > 1 else "" for one in launches]
        parts = tuple(
            _Part.of(trace, block, name, (begin, end))
            for trace, name in zip(launches, names, strict=True)
        )
        return cls(
            parts=parts,
            block=block,
            theme=theme,
            width=width * DPI,
            warps=Panel.of((part.rows for part in parts), 1.0),
            stages=Panel.of(([row for _, row in part.stages] for part in parts), _STAGE_ROWS),
            begin=begin,
            end=end,
        )

    @property
    def trace(self) -> Trace:
        """The first launch, of which the others have kernel and unit."""
        return self.parts[0].trace

    def figure(self) -> Figure:
        """Draw both panels and the arrows between them."""
        caption = wrapped(_CAPTIONS[self.trace.unit], self.width - 2 * _MARGIN_PIXELS)
        entries = self._legend_of_warps()
        left = self._left_pixels()
        columns = legend_columns(list(entries), self.width - left - _MARGIN_PIXELS)
        legend_rows = -(-max(len(entries), 1) // columns)
        above = _ABOVE + _LINE_INCHES * (len(caption) - 1 + legend_rows)
        figure, warps, stages = self._panels(left, above)
        self._write_title(figure, caption)
        self._draw_panel(warps, self.warps, "warps")
        self._draw_panel(stages, self.stages, "stages")
        self._draw_axis(stages)
        self._draw_loads(warps)
        self._draw_arrows(warps, stages)
        self._add_legend(warps, entries, columns, loc="lower right", y=1.0)
        below = _LEGEND_BELOW / (stages.get_position().height * figure.get_figheight())
        of_stages = self._legend_of_stages()
        self._add_legend(stages, of_stages, max(len(of_stages), 1), loc="upper right", y=-below)
        return figure

    def _panels(self, left: float, above: float) -> tuple[Figure, Axes, Axes]:
        """Return a figure with room on the left, in pixels, and above, in inches."""
        margins = above + _BETWEEN + _BELOW
        rows = self.warps.height + self.stages.height
        height = _height(rows, margins)
        per_row = (height - margins) / rows
        figure = Figure(figsize=(self.width / DPI, height), dpi=DPI, facecolor=self.theme.page)

        def axes_of(panel: Panel, bottom: float, **more: Any) -> Axes:
            width = self.width - left - _MARGIN_PIXELS
            inches = panel.height * per_row
            extent = left / self.width, bottom / height, width / self.width, inches / height
            return figure.add_axes(extent, **more)

        warps = axes_of(self.warps, _BELOW + self.stages.height * per_row + _BETWEEN)
        stages = axes_of(self.stages, _BELOW, sharex=warps)
        # Arrows belong to the stages: under the bars of warps, over the bars of stages.
        warps.set_zorder(1)
        warps.patch.set_visible(False)
        return figure, warps, stages

    def _left_pixels(self) -> float:
        """Return the room that the names on the left take."""
        return _MARGIN_PIXELS + max(
            self._name_pixels(self.warps) + _GAP_PIXELS + self._row_name_pixels(),
            self._name_pixels(self.stages),
        )

    def _name_pixels(self, panel: Panel) -> float:
        names = {row.lane for row in panel.rows}
        widths = (text_pixels(name, _NAME_POINTS, "bold") for name in names)
        return min(max(widths, default=0.0), _MOST_NAME_PIXELS)

    def _row_name_pixels(self) -> float:
        widths = (text_pixels(row.name, TEXT_POINTS) for row in self.warps.rows)
        return max(widths, default=0.0) + _GAP_PIXELS

    def _write_title(self, figure: Figure, caption: Sequence[str]) -> None:
        grid = " x ".join(map(str, self.trace.grid))
        title = f"{self.trace.kernel_name}: block {self.block} of {grid}"
        if len(self.parts) > 1:
            peers = "devices" if self.trace.rank is None else "ranks"
            title += f" on each of {len(self.parts)} {peers}"
        room = self.width - 2 * _MARGIN_PIXELS
        left, height = _MARGIN_PIXELS / self.width, figure.get_figheight()
        figure.text(
            left,
            1 - 0.3 / height,
            shortened(title, _TITLE_POINTS, room, "bold"),
            fontsize=_TITLE_POINTS,
            weight="bold",
            color=self.theme.ink,
            va="center",
        )
        for number, line in enumerate(caption):
            y = 1 - (0.6 + _LINE_INCHES * number) / height
            figure.text(left, y, line, fontsize=TEXT_POINTS, color=self.theme.faint, va="center")

    # --- rows and their names -----------------------------------------------------------------

    def _draw_panel(self, axes: Axes, panel: Panel, heading: str) -> None:
        axes.set_ylim(panel.height + 0.1, -0.1)
        axes.set_facecolor("none")
        axes.annotate(
            heading,
            xy=(0, 1),
            xycoords="axes fraction",
            xytext=(-6, 6),
            textcoords="offset points",
            ha="right",
            fontsize=_HEADING_POINTS,
            color=self.theme.ink,
        )
        axes.set_yticks(panel.middles, [row.name for row in panel.rows])
        axes.tick_params(
            axis="y", length=0, labelsize=TEXT_POINTS, labelcolor=self.theme.faint, pad=6
        )
        axes.set_axisbelow(True)
        axes.grid(axis="x", color=self.theme.grid, linewidth=0.8)
        axes.spines[:].set_visible(False)
        self._name_lanes(axes, panel)
        scale = self._pixels_per_unit(axes)
        for row, middle in zip(panel.rows, panel.middles, strict=True):
            self._draw_bars(axes, row.bars, middle, _bar_height(panel), scale)

    def _name_lanes(self, axes: Axes, panel: Panel) -> None:
        """Write each lane's name once, next to the names of its rows."""
        middles_of: dict[str, list[float]] = {}
        for row, middle in zip(panel.rows, panel.middles, strict=True):
            middles_of.setdefault(row.lane, []).append(middle)
        offset = 6.0 * DPI / 72
        if panel is self.warps:
            offset += self._row_name_pixels()
        for name, middles in middles_of.items():
            axes.annotate(
                shortened(name, _NAME_POINTS, _MOST_NAME_PIXELS, "bold"),
                xy=(0, (middles[0] + middles[-1]) / 2),
                xycoords=("axes fraction", "data"),
                xytext=(-offset, 0),
                textcoords="offset pixels",
                ha="right",
                va="center",
                fontsize=_NAME_POINTS,
                weight="bold",
                color=self.theme.ink,
            )

    def _draw_bars(
        self, axes: Axes, bars: Sequence[Bar], middle: float, height: float, scale: float
    ) -> None:
        for state in dict.fromkeys(bar.state for bar in bars):
            spans = [(bar.begin, bar.end - bar.begin) for bar in bars if bar.state is state]
            axes.broken_barh(
                spans,
                (middle - height / 2, height),
                facecolors=self.theme.colour(state),
                edgecolors=self.theme.page,
                # Thinner bars would be all edge.
                linewidth=[0.6 if width * scale > _EDGED_PIXELS else 0 for _, width in spans],
            )
        for bar, label in fitting(bars, scale):
            axes.text(
                (bar.begin + bar.end) / 2,
                middle,
                label,
                ha="center",
                va="center_baseline",
                fontsize=LABEL_POINTS,
                color=self.theme.on(self.theme.colour(bar.state)),
            )

    def _pixels_per_unit(self, axes: Axes) -> float:
        return self.width * float(axes.get_position().width) / (self.end - self.begin)

    def _draw_axis(self, stages: Axes) -> None:
        stages.set_xlim(self.begin, self.end)
        stages.set_xlabel(_CLOCKS[self.trace.unit], color=self.theme.ink, loc="left")
        stages.tick_params(axis="x", color=self.theme.faint, labelcolor=self.theme.ink)
        stages.spines["bottom"].set(visible=True, color=self.theme.faint)

    # --- loads --------------------------------------------------------------------------------

    def _issues(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Return where each load is issued: launch and sequence to time and row."""
        numbers = (number for number, part in enumerate(self.parts) for _ in part.rows)
        return {
            (number, sequence): (time, middle)
            for number, row, middle in zip(
                numbers, self.warps.rows, self.warps.middles, strict=True
            )
            for time, sequence in row.loads
        }

    def _draw_loads(self, warps: Axes) -> None:
        warps.tick_params(axis="x", length=0, labelbottom=False)
        issues = self._issues().values()
        if issues:
            times, middles = zip(*issues, strict=True)
            warps.plot(times, middles, "v", color=self.theme.ink, markersize=6, zorder=5)

    def _draw_arrows(self, warps: Axes, stages: Axes) -> None:
        """Draw arrows from each load to its landing, and from each post of a signal to its wait.

        Too many of a kind are left out.
        """
        for arrows, ends, colour, zorder in (
            (tuple(self._arrows()), stages, self.theme.ink, 2.5),  # Over bars, under labels
            (tuple(self._signals()), warps, self.theme.ink, 6),
        ):
            for begin, end in arrows if len(arrows) <= _MOST_ARROWS else ():
                arrow = ConnectionPatch(
                    xyA=begin,
                    xyB=end,
                    coordsA=warps.transData,
                    coordsB=ends.transData,
                    arrowstyle="-|>,head_length=0.35,head_width=0.16",
                    color=colour,
                    alpha=0.5 if ends is stages else 1,
                    linewidth=0.8 if ends is stages else 1.4,
                    shrinkA=3 if ends is stages else 0,
                    shrinkB=0,
                    zorder=zorder,
                    clip_on=False,
                )
                arrow.set_in_layout(False)
                ends.add_artist(arrow)

    def _arrows(self) -> Iterator[_Arrow]:
        issues = self._issues()
        middles = iter(self.stages.middles)
        top = _bar_height(self.stages) / 2
        for number, part in enumerate(self.parts):
            middle_of = {barrier: next(middles) for barrier, _ in part.stages}
            landings = part.trace.of(block=self.block, kind=EventKind.LOAD_LANDED).events
            for landing in landings:
                issue = issues.get((number, int(landing["sequence"])))
                middle = middle_of.get(int(landing["barrier"]))
                if issue is not None and middle is not None:
                    yield issue, (int(landing["time"]), middle - top)

    def _signals(self) -> Iterator[_Arrow]:
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

    # --- legends ------------------------------------------------------------------------------

    def _legend_of_warps(self) -> dict[str, Activity]:
        """Return the texts, with the number of bars or loads that are shown, and their states."""
        counts = Counter(bar.state for row in self.warps.rows for bar in row.bars)
        counts[Activity.LOADING] = sum(len(row.loads) for row in self.warps.rows)
        return {
            f"{activity.value} ({counts[activity]})": activity
            for activity in Activity
            if counts[activity]
        }

    def _legend_of_stages(self) -> dict[str, StageState]:
        """Return the texts of the states that occur, with their counts."""
        counts = Counter(bar.state for row in self.stages.rows for bar in row.bars)
        return {
            state.value if state is StageState.EMPTY else f"{state.value} ({counts[state]})": state
            for state in sorted(StageState, key=lambda state: state is StageState.EMPTY)
            if counts[state]
        }

    def _add_legend(
        self,
        axes: Axes,
        entries: dict[str, Activity] | dict[str, StageState],
        columns: int,
        *,
        loc: Literal["lower right", "upper right"],
        y: float,
    ) -> None:
        if not entries:
            return
        axes.legend(
            handles=[self._handle(text, state) for text, state in entries.items()],
            loc=loc,
            bbox_to_anchor=(1.0, y),
            ncols=columns,
            frameon=False,
            fontsize=TEXT_POINTS,
            labelcolor=self.theme.ink,
            handlelength=1.2,
            columnspacing=1.4,
            borderaxespad=0.2,
        )

    def _handle(self, text: str, state: Activity | StageState) -> Artist:
        if state is Activity.LOADING:
            return Line2D([], [], color=self.theme.ink, marker="v", linestyle="", label=text)
        colour = self.theme.colour(state)
        return Patch(facecolor=colour, edgecolor=self.theme.faint, linewidth=0.5, label=text)


def _bar_height(panel: Panel) -> float:
    """Return the height of a bar, in rows."""
    return _BAR_HEIGHT * (panel.middles[0] * 2 if panel.middles else 1.0)


def _height(rows: float, margins: float) -> float:
    """Return the usual height, less where few rows would be fat, more where many would be thin."""
    thin, fat = (margins + rows * inches for inches in _ROW_INCHES)
    return round(min(fat, max(_USUAL_INCHES, thin)) * DPI) / DPI
