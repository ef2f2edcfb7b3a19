"""The swizzle explorer shows what sums of our own give, and its page draws that in a browser."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from swizzle_sums import passes, place, read, words

ROOT = Path(__file__).resolve().parents[2]
MODES = {"NONE": "none", "B32": "32B", "B64": "64B", "B128": "128B"}
SPANS = {"NONE": 16, "B32": 32, "B64": 64, "B128": 128}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def explorer() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "swizzle_explorer.py"))


@pytest.fixture(scope="module")
def data(explorer: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = explorer["data"]()
    return made


def test_every_choice_that_a_span_allows_has_its_data(data: dict[str, Any]) -> None:
    tiles = {
        f"{mode} {rows} {row_bytes}"
        for mode in MODES
        for rows in data["rows"]
        for row_bytes in data["row_bytes"]
        if row_bytes >= SPANS[mode]
    }
    sizes = {size: {16} for size in data["patterns"]}
    sizes |= {name: set(data["dtypes"].values()) for name in ("column", "row-elements")}

    assert set(data["layouts"]) == tiles
    assert set(data["costs"]) == {
        f"{tile} {pattern} {size}" for tile in tiles for pattern in sizes for size in sizes[pattern]
    }


def test_element_types_have_their_sizes(data: dict[str, Any]) -> None:
    for name, itemsize in data["dtypes"].items():
        assert np.dtype(getattr(ml_dtypes, name, name)).itemsize == itemsize


def test_chunks_lie_where_the_hardware_puts_them(data: dict[str, Any]) -> None:
    for key, chunks in data["layouts"].items():
        mode, rows, row_bytes = key.split()
        for unit, (row, number) in enumerate(chunks):
            found = place(MODES[mode], row, number * 16, int(rows), int(row_bytes))
            assert found == unit * 16, key


def test_lanes_and_words_of_each_bank_are_those_that_one_counts(data: dict[str, Any]) -> None:
    for key, cost in data["costs"].items():
        mode, rows, row_bytes, pattern, size = key.split()
        tile = int(rows), int(row_bytes)
        accesses = read(pattern, *tile, int(size))
        assert len(accesses) == cost["accesses"], key
        for access, shown in zip(accesses, cost["shown"], strict=False):
            lanes = [place(MODES[mode], row, byte, *tile) for row, byte in access]
            counted = words(lanes, int(size))
            assert shown["lanes"] == lanes, key
            assert [
                [int(one, 36) for one in phase["words"]] for phase in shown["phases"]
            ] == counted
            assert [phase["passes"] for phase in shown["phases"]] == list(map(max, counted)), key


def test_the_cost_of_a_whole_tile_adds_up_its_accesses(data: dict[str, Any]) -> None:
    for key, cost in data["costs"].items():
        mode, rows, row_bytes, pattern, size = key.split()
        if (rows, row_bytes) != ("16", "128"):
            continue
        accesses = [
            [place(MODES[mode], row, byte, 16, 128) for row, byte in access]
            for access in read(pattern, 16, 128, int(size))
        ]
        needed = sum(len(words(lanes, int(size))) for lanes in accesses)
        assert cost["passes"] == sum(passes(lanes, int(size)) for lanes in accesses), key
        assert cost["conflicts"] == cost["passes"] - needed, key


def test_the_page_has_one_place_for_the_explorer(explorer: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "swizzle_explorer.md").read_text()

    assert page.count(explorer["MARK"]) == 1


# --- in a browser -----------------------------------------------------------------------------


class Seen(HTMLParser):
    """What each part of the page says, and the chunks of each picture, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.said: dict[str, str] = {}
        self.chunks: dict[str, list[str]] = {"tile": [], "memory": []}
        self.framed: dict[str, list[str]] = {"tile": [], "memory": []}
        self._part = ""
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        if tag in ("p", "div", "table", "figcaption"):
            self._part = classes[0] if classes else ""
        self._cell = classes if tag == "i" else None

    def handle_data(self, text: str) -> None:
        self.said[self._part] = self.said.get(self._part, "") + text
        if self._cell is not None:
            self.chunks[self._part].append(text)
            if "read" in self._cell:
                self.framed[self._part].append(text)

    def handle_endtag(self, tag: str) -> None:
        self._cell = None


def seen(page: str, folder: Path, choice: str, script: str) -> Seen:
    path = folder / "explorer.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    ran = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={folder}/profile", f"{path.as_uri()}#{choice}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return Seen(ran.stdout)


KEYS = """
const memory = document.querySelector(".memory");
for (const key of ["ArrowDown", "ArrowDown", "ArrowRight"]) {
    memory.dispatchEvent(new KeyboardEvent("keydown", { key }));
}
"""


@pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(BROWSERS)} is here")
def test_a_browser_draws_what_the_address_asks_for_and_follows_the_keyboard(
    explorer: dict[str, Any], tmp_path: Path
) -> None:
    choice = "dtype=nonsense&rows=16&row_bytes=128&swizzle=B64&access=column-chunks&at=1"
    shown = seen(explorer["page"](), tmp_path, choice, KEYS)

    names = {(row, chunk): f"{row}.{chunk}" for row in range(16) for chunk in range(8)}
    in_memory = {
        place("64B", row, 16 * chunk, 16, 128): name for (row, chunk), name in names.items()
    }
    lanes = [place("64B", row, 16, 16, 128) for row in range(16)]
    assert shown.chunks["tile"] == list(names.values())
    assert shown.chunks["memory"] == [in_memory[byte] for byte in sorted(in_memory)]
    assert shown.framed["tile"] == [names[row, 1] for row in range(16)]
    assert shown.framed["memory"] == [in_memory[byte] for byte in sorted(lanes)]
    said = f"Access 2: {passes(lanes, 16)} passes over the banks for 16 lanes of 16 bytes"
    assert shown.said["verdict"].startswith(said)
    # Down to the first chunk, down to the second line, and right: four banks further.
    row, chunk = in_memory[128 + 16].split(".")
    assert f"Row {row}, chunk {chunk} (columns " in shown.said["pointed"]
    assert ": byte 144 of the tile in shared memory, banks 4 to 7." in shown.said["pointed"]
