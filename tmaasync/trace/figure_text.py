"""Text of a figure that fits into its room."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from tmaasync.trace.rows import Bar

DPI = 100
TEXT_POINTS, LABEL_POINTS = 9, 8
_MOST_LABELS = 600
# Glyphs on whole pixels of a PNG are wider than their outlines.
_HINTED = 1.07


@functools.lru_cache(maxsize=4096)
def text_pixels(text: str, points: float, weight: str = "normal") -> float:
    """Measure a line of text."""
    font = FontProperties(size=points, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) * _HINTED * DPI / 72


def shortened(text: str, points: float, pixels: float, weight: str = "normal") -> str:
    """Return the text, cut where it does not fit."""
    if text_pixels(text, points, weight) <= pixels:
        return text
    kept = len(text)
    while kept > 1 and text_pixels(f"{text[:kept]}…", points, weight) > pixels:
        kept -= 1
    return f"{text[:kept]}…"


def wrapped(text: str, pixels: float) -> list[str]:
    """Return the text in lines that fit."""
    lines = [""]
    for word in text.split():
        line = f"{lines[-1]} {word}".strip()
        if text_pixels(line, TEXT_POINTS) <= pixels:
            lines[-1] = line
        else:
            lines.append(word)
    return lines


def fitting(bars: Iterable[Bar], pixels_per_unit: float) -> Iterator[tuple[Bar, str]]:
    """Yield each bar with the first of its labels that has room in it."""
    labelled = 0
    for bar in bars:
        room = (bar.end - bar.begin) * pixels_per_unit - 6
        fits = (label for label in bar.labels if text_pixels(label, LABEL_POINTS) <= room)
        label = next(fits, None)
        if label is not None and labelled < _MOST_LABELS:
            labelled += 1
            yield bar, label


def legend_columns(labels: Sequence[str], pixels: float) -> int:
    """Return the most columns in which a legend of these labels fits."""
    em = TEXT_POINTS * DPI / 72
    widths = [text_pixels(label, TEXT_POINTS) + 2 * em for label in labels]
    for columns in range(len(labels), 1, -1):
        rows, longer = divmod(len(labels), columns)
        # As matplotlib does: by column, the first ones have one more.
        starts = [column * rows + min(column, longer) for column in range(columns + 1)]
        taken = sum(max(widths[i:j]) for i, j in itertools.pairwise(starts))
        if taken + (columns - 1) * 1.4 * em <= pixels:
            return columns
    return 1
