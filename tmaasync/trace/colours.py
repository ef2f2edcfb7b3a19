"""Colours of timelines, for light and for dark pages."""

from __future__ import annotations

from dataclasses import dataclass

from tmaasync.trace.lanes import Activity
from tmaasync.trace.pipelines import StageState

# Okabe and Ito's palette for the colour-blind.
_ORANGE, _SKY, _GREEN, _YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
_BLUE, _VERMILION, _PURPLE = "#0072B2", "#D55E00", "#CC79A7"

_COLOURS: dict[Activity | StageState, str] = {
    Activity.WAITING_FULL: _SKY,
    Activity.WAITING_EMPTY: _YELLOW,
    Activity.WAITING_BARRIER: _PURPLE,
    Activity.WAITING_STORES: "#f2b08a",
    Activity.WAITING_SIGNAL: "#b7a3e0",
    Activity.COMPUTING: _GREEN,
    Activity.STORING: _VERMILION,
    StageState.FILLING: _ORANGE,
    StageState.LOADED: "#a8c6dc",
    StageState.FULL: _BLUE,
    StageState.READING: _GREEN,
}


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of one kind of page; ``greys`` are the states that matter less."""

    page: str
    ink: str
    faint: str
    grid: str
    greys: dict[Activity | StageState, str]

    def colour(self, state: Activity | StageState) -> str:
        """Return the colour of a bar."""
        return self.greys.get(state) or _COLOURS[state]

    def on(self, colour: str) -> str:
        """Return the ink that is easier to read on this colour.

        >>> LIGHT.on("#F0E442"), LIGHT.on("#0072B2")
        ('#1f2328', '#ffffff')
        """
        background = _luminance(colour)
        return max((_BLACK, _WHITE), key=lambda ink: _contrast(_luminance(ink), background))


_BLACK, _WHITE = "#1f2328", "#ffffff"

LIGHT = Theme(
    page=_WHITE,
    ink=_BLACK,
    faint="#59636e",
    grid="#e3e6ea",
    greys={
        Activity.WAITING_NAMED: "#c9ced6",
        Activity.WAITING_CLUSTER: "#9aa3ad",
        Activity.WAITING: "#dfe3e8",
        StageState.EMPTY: "#f1f2f4",
    },
)
# The page of furo's dark mode.
DARK = Theme(
    page="#131416",
    ink="#e6edf3",
    faint="#9198a1",
    grid="#2a2f36",
    greys={
        Activity.WAITING_NAMED: "#59636e",
        Activity.WAITING_CLUSTER: "#7d8590",
        Activity.WAITING: "#444c56",
        StageState.EMPTY: "#1f242b",
    },
)


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
