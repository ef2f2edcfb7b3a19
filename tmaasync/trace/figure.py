"""Drawing with matplotlib: rows of warps above, stages of pipelines below, one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch

from tmaasync.trace.arrows import Arrows
from tmaasync.trace.colours import DARK, LIGHT, Theme
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
from tmaasync.trace.legend import add_legend, entries_of_stages, entries_of_warps
from tmaasync.trace.parts import Part
from tmaasync.trace.rows import Bar, Panel
from tmaasync.trace.trace import Trace

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
class _Picture:
    """The picture of one block of each launch."""

    parts: tuple[Part, ...]
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
            Part.of(trace, block, name, (begin, end))
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

    @property
    def _arrows(self) -> Arrows:
        return Arrows(self.parts, self.block, self.warps, self.stages, self.begin, self.end)

    def figure(self) -> Figure:
        """Draw both panels and the arrows between them."""
        caption = wrapped(_CAPTIONS[self.trace.unit], self.width - 2 * _MARGIN_PIXELS)
        entries = entries_of_warps(self.warps)
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
        add_legend(warps, self.theme, entries, columns, loc="lower right", y=1.0)
        below = _LEGEND_BELOW / (stages.get_position().height * figure.get_figheight())
        of_stages = entries_of_stages(self.stages)
        columns = max(len(of_stages), 1)
        add_legend(stages, self.theme, of_stages, columns, loc="upper right", y=-below)
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
            self._draw_bars(axes, row.bars, middle, panel.bar_height, scale)

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

    def _draw_loads(self, warps: Axes) -> None:
        warps.tick_params(axis="x", length=0, labelbottom=False)
        issues = self._arrows.issues().values()
        if issues:
            times, middles = zip(*issues, strict=True)
            warps.plot(times, middles, "v", color=self.theme.ink, markersize=6, zorder=5)

    def _draw_arrows(self, warps: Axes, stages: Axes) -> None:
        """Draw arrows from each load to its landing, and from each post of a signal to its wait.

        Too many of a kind are left out.
        """
        # Over bars, under labels.
        of_loads: dict[str, Any] = {"alpha": 0.5, "linewidth": 0.8, "shrinkA": 3, "zorder": 2.5}
        of_signals: dict[str, Any] = {"alpha": 1, "linewidth": 1.4, "shrinkA": 0, "zorder": 6}
        for arrows, ends, looks in (
            (tuple(self._arrows.of_loads()), stages, of_loads),
            (tuple(self._arrows.of_signals()), warps, of_signals),
        ):
            for begin, end in arrows if len(arrows) <= _MOST_ARROWS else ():
                arrow = ConnectionPatch(
                    xyA=begin,
                    xyB=end,
                    coordsA=warps.transData,
                    coordsB=ends.transData,
                    arrowstyle="-|>,head_length=0.35,head_width=0.16",
                    color=self.theme.ink,
                    shrinkB=0,
                    clip_on=False,
                    **looks,
                )
                arrow.set_in_layout(False)
                ends.add_artist(arrow)


def _height(rows: float, margins: float) -> float:
    """Return the usual height, less where few rows would be fat, more where many would be thin."""
    thin, fat = (margins + rows * inches for inches in _ROW_INCHES)
    return round(min(fat, max(_USUAL_INCHES, thin)) * DPI) / DPI
