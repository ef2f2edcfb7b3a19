"""Legends of a figure: the states that occur, with their counts."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tmaasync.trace.colours import Theme
from tmaasync.trace.figure_text import TEXT_POINTS
from tmaasync.trace.lanes import Activity
from tmaasync.trace.pipelines import StageState
from tmaasync.trace.rows import Panel


def entries_of_warps(warps: Panel) -> dict[str, Activity]:
    """Return the texts, with the number of bars or loads that are shown, and their states."""
    counts = Counter(bar.state for row in warps.rows for bar in row.bars)
    counts[Activity.LOADING] = sum(len(row.loads) for row in warps.rows)
    return {
        f"{activity.value} ({counts[activity]})": activity
        for activity in Activity
        if counts[activity]
    }


def entries_of_stages(stages: Panel) -> dict[str, StageState]:
    """Return the texts of the states that occur, with their counts."""
    counts = Counter(bar.state for row in stages.rows for bar in row.bars)
    return {
        state.value if state is StageState.EMPTY else f"{state.value} ({counts[state]})": state
        for state in sorted(StageState, key=lambda state: state is StageState.EMPTY)
        if counts[state]
    }


def add_legend(
    axes: Axes,
    theme: Theme,
    entries: dict[str, Activity] | dict[str, StageState],
    columns: int,
    *,
    loc: Literal["lower right", "upper right"],
    y: float,
) -> None:
    """Add a legend to a panel, if anything is shown there."""
    if not entries:
        return
    axes.legend(
        handles=[_handle(text, state, theme) for text, state in entries.items()],
        loc=loc,
        bbox_to_anchor=(1.0, y),
        ncols=columns,
        frameon=False,
        fontsize=TEXT_POINTS,
        labelcolor=theme.ink,
        handlelength=1.2,
        columnspacing=1.4,
        borderaxespad=0.2,
    )


def _handle(text: str, state: Activity | StageState, theme: Theme) -> Artist:
    if state is Activity.LOADING:
        return Line2D([], [], color=theme.ink, marker="v", linestyle="", label=text)
    colour = theme.colour(state)
    return Patch(facecolor=colour, edgecolor=theme.faint, linewidth=0.5, label=text)
