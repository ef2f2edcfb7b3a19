"""One hand-over between two GPUs: what each does, and what lies in the consumer's memory."""

from __future__ import annotations

from drawing import COLOURS, QUIET, Drawing

STEP, LANE_HEIGHT, LEFT, TOP = 150, 62, 130, 46
_DATA, _SIGNAL, _FENCE = COLOURS[0], COLOURS[1], COLOURS[2]

# Lane, first column, columns, colour, words.
_BOXES = (
    (0, 0, 1, _DATA, ("async_store", "to the peer")),
    (0, 1, 1, _DATA, ("commit_group", "wait_group<0>")),
    (0, 2, 1, _SIGNAL, ("post(to, signal, n)", "release, system scope")),
    (1, 0, 2, QUIET, ("the tile arrives", "")),
    (1, 2, 1, _SIGNAL, ("signal = n", "")),
    (2, 0, 3, QUIET, ("wait(signal, n)", "polls its own memory")),
    (2, 3, 1, _FENCE, ("acquire, then", "fence.proxy.async")),
    (2, 4, 1, _DATA, ("async_copy", "of the tile")),
)
_LANES = (("GPU 0", "producer"), ("GPU 1", "memory"), ("GPU 1", "consumer"))
_COLUMNS = 5


def peers() -> Drawing:
    """A store to a peer, its signal, and the load that follows, over time."""
    right = LEFT + _COLUMNS * STEP
    drawing = Drawing(right + 20, TOP + len(_LANES) * LANE_HEIGHT + 14, "A tile for a peer")
    drawing.text(right, 24, "time \N{RIGHTWARDS ARROW}", text_anchor="end")
    for lane, (device, part) in enumerate(_LANES):
        y = TOP + lane * LANE_HEIGHT
        drawing.text(20, y + 22, device, font_weight="bold")
        drawing.text(20, y + 39, part)
        drawing.line(20, y + LANE_HEIGHT - 4, right, y + LANE_HEIGHT - 4)
    for lane, column, columns, colour, words in _BOXES:
        _box(drawing, lane, column, columns, colour, words)
    return drawing


def _box(
    drawing: Drawing, lane: int, column: int, columns: int, colour: str, words: tuple[str, str]
) -> None:
    x, y, width = LEFT + column * STEP, TOP + lane * LANE_HEIGHT + 4, columns * STEP
    drawing.rect(x + 2, y, width - 4, LANE_HEIGHT - 14, colour, rx="3")
    first, second = words
    is_coloured = colour != QUIET
    middle = x + width / 2
    where = y + 20 if second else y + 28
    drawing.text(middle, where, first, 13, on_colour=is_coloured, text_anchor="middle")
    if second:
        drawing.text(middle, y + 38, second, 12, on_colour=is_coloured, text_anchor="middle")
