"""Writes the swizzle explorer, a page for a browser: ``python tools/swizzle_explorer.py FILE``.

`tmaasync.swizzle` computes every layout and every cost here, for each choice that the page offers;
the page's script only draws. `docs/conf.py` puts the explorer into `docs/swizzle_explorer.md`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from tmaasync._elements import element
from tmaasync._hardware import SWIZZLE_CHUNK_BYTES
from tmaasync.cli._chunk_pictures import COLOURS
from tmaasync.cli._chunks import Access, Layout
from tmaasync.modes import Swizzle
from tmaasync.swizzle import bank_words

SOURCES = Path(__file__).resolve().parents[1] / "docs" / "explorer"
MARK = "<!-- swizzle explorer -->"

DTYPES = ("uint8", "float8_e4m3fn", "float16", "bfloat16", "float32", "int32", "float64")
SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
ROWS = (8, 16, 32, 64)
ROW_BYTES = (32, 64, 128, 256)
# Later accesses of a tile repeat the pattern of the first ones.
ACCESSES_SHOWN = 4
PATTERNS = {
    Access.ROW_ELEMENTS: "Row: an element a lane",
    Access.ROW: "Row: a vector of 16 bytes a lane",
    Access.COLUMN: "Column: an element a lane",
    Access.COLUMN_CHUNKS: "Column: a vector of 16 bytes a lane",
    Access.LDMATRIX: "ldmatrix: four of 8 rows x 16 bytes",
    Access.CORE_MATRIX: "wgmma: a core matrix, 8 rows x 16 bytes",
}
_DIGITS = "0123456789abcdefghijklmnopqrstuvw"


def data() -> dict[str, Any]:
    """Return the facts that the page shows, by the key of the choice."""
    return {
        "dtypes": {name: element(name).itemsize for name in DTYPES},
        "swizzles": {
            mode.name: {"span_bytes": mode.span_bytes, "alignment": mode.alignment}
            for mode in SWIZZLES
        },
        "rows": ROWS,
        "row_bytes": ROW_BYTES,
        "patterns": PATTERNS,
        "colours": COLOURS,
        "layouts": dict(layouts()),
        "costs": dict(costs()),
    }


def layouts() -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield each layout: for each 16 bytes of shared memory, the row and the chunk of the tile."""
    for mode, rows, row_bytes in _tiles():
        chunks = Layout(rows, row_bytes, 1, mode).chunks()
        in_order = sorted(chunks, key=lambda chunk: chunk.offset)
        yield f"{mode.name} {rows} {row_bytes}", [(one.row, one.number) for one in in_order]


def costs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the cost of each access pattern on each tile, and its first accesses."""
    for (mode, rows, row_bytes), how in product(_tiles(), PATTERNS):
        key = f"{mode.name} {rows} {row_bytes} {how}"
        # The cost of a 16-byte read does not depend on the element type.
        sizes = (
            {element(name).itemsize for name in DTYPES}
            if how.by_elements
            else {SWIZZLE_CHUNK_BYTES}
        )
        for itemsize in sorted(sizes):
            layout = Layout(rows, row_bytes // itemsize, itemsize, mode)
            yield f"{key} {itemsize}", asdict(layout.cost(how)) | {"shown": _shown(layout, how)}


def _tiles() -> Iterator[tuple[Swizzle, int, int]]:
    for mode, rows, row_bytes in product(SWIZZLES, ROWS, ROW_BYTES):
        if row_bytes % mode.span_bytes == 0:
            yield mode, rows, row_bytes


def _shown(layout: Layout, how: Access) -> list[dict[str, Any]]:
    first = [lanes for _, lanes in zip(range(ACCESSES_SHOWN), layout.accesses(how), strict=False)]
    return [{"lanes": lanes, "phases": _phases(lanes, layout.lane_bytes(how))} for lanes in first]


def _phases(lanes: list[int], lane_bytes: int) -> list[dict[str, Any]]:
    """Return the passes of each phase, and the words read from each bank as a digit of base 33."""
    return [
        {"passes": max(phase), "words": "".join(_DIGITS[count] for count in phase)}
        for phase in bank_words(lanes, lane_bytes).tolist()
    ]


def fragment() -> str:
    """Return the explorer as HTML for the body of a page."""
    style, body, script = (
        (SOURCES / name).read_text() for name in ("explorer.css", "explorer.html", "explorer.js")
    )
    facts = json.dumps(data(), separators=(",", ":"))
    return (
        f"<style>\n{style}</style>\n{body}"
        f'<script type="application/json" id="swizzle-data">{facts}</script>\n'
        f"<script>\n{script}</script>\n"
    )


def page() -> str:
    """Return the explorer as a page by itself."""
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Swizzle explorer</title>\n<body>\n{fragment()}</body>\n</html>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the HTML file to write")
    parser.parse_args().file.write_text(page())


if __name__ == "__main__":
    main()
