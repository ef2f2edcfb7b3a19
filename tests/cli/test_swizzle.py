"""``tmaasync swizzle``: offsets and conflicts, against independent arithmetic."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import assert_refused, json_of, run
from swizzle_sums import MASKS, passes, place, read

from tmaasync.cli._chunks import Access
from tmaasync.cli.swizzle import ProbedDevices
from tmaasync.modes import Swizzle


@pytest.mark.parametrize("mode", list(MASKS))
@pytest.mark.parametrize(("rows", "chunks"), [(8, 8), (64, 16), (24, 24)])
def test_chunks_lie_where_the_hardware_puts_them(mode: str, rows: int, chunks: int) -> None:
    document = json_of("swizzle", "--mode", mode, f"--rows={rows}", f"--columns={chunks * 8}")

    found = {(chunk["row"], chunk["number"]): chunk["offset"] for chunk in document["chunks"]}
    assert found == {
        (row, chunk): place(mode, row, chunk * 16, rows, chunks * 16)
        for row in range(rows)
        for chunk in range(chunks)
    }
    assert sorted(found.values()) == [16 * index for index in range(rows * chunks)]


@pytest.mark.parametrize(
    ("mode", "access", "conflicts", "worst"),
    [
        ("none", "ldmatrix", 8 * 7, 28),
        ("128B", "ldmatrix", 0, 0),
        ("64B", "ldmatrix", 0, 0),
        ("none", "row", 0, 0),
        ("128B", "row", 0, 0),
    ],
)
def test_eight_rows_of_128_bytes_have_the_conflicts_that_are_known(
    mode: str, access: str, conflicts: int, worst: int
) -> None:
    document = json_of("swizzle", "--mode", mode, "--columns", "64", "--access", access)["access"]

    assert (document["conflicts"], document["worst"]) == (conflicts, worst)
    assert document["passes"] == 8 + document["conflicts"]


@pytest.mark.parametrize("access", list(Access))
def test_every_way_of_reading_takes_the_passes_that_one_counts(access: Access) -> None:
    arguments = ("swizzle", "--mode", "64B", "--rows=16", "--columns=64", f"--access={access}")
    size = 2 if access in (Access.COLUMN, Access.ROW_ELEMENTS) else 16

    lanes = [
        [place("64B", row, byte, 16, 128) for row, byte in one]
        for one in read(access, 16, 128, size)
    ]
    wanted = sum(passes(one, size) for one in lanes)

    assert json_of(*arguments)["access"]["passes"] == wanted
    assert f"{len(lanes)} accesses read the tile in {wanted} passes" in run(*arguments).output


def test_the_terminal_marks_what_the_first_access_reads() -> None:
    lines = run("swizzle", "--access", "column").output.splitlines()

    assert lines[0] == "Swizzle 128B: 8 x 64 elements of 2 bytes in shared memory"
    assert lines[2].split() == ["bank", *(f"{bank}-{bank + 3}" for bank in range(0, 32, 4))]
    assert lines[3].split() == ["0", "0.0*", *(f"0.{chunk}" for chunk in range(1, 8))]
    assert lines[4].split() == ["128", "1.1", "1.0*", "1.3", "1.2", "1.5", "1.4", "1.7", "1.6"]


def test_a_tall_tile_is_cut_in_the_terminal_alone() -> None:
    assert "... 192 lines more" in run("swizzle", "--rows", "256").output
    assert len(json_of("swizzle", "--rows", "256")["chunks"]) == 256 * 8


def test_the_picture_has_a_cell_for_every_chunk(tmp_path: Path) -> None:
    path = tmp_path / "chunks.svg"

    document = json_of("swizzle", "--rows", "16", "--access", "row", "--svg", str(path))

    texts = [text for text in ET.parse(path).getroot() if text.tag.endswith("text")]
    labels = [text.text for text in texts if text.get("class") == "label"]
    title, *names, caption = [str(text.text) for text in texts if text.get("class") != "label"]
    assert sorted(names) == sorted(f"{row}.{chunk}" for row in range(16) for chunk in range(8))
    assert labels[:3] == ["bank", "0-3", "4-7"]
    assert labels[9:] == [f"byte {128 * line}" for line in range(16)]
    assert title == "Swizzle 128B: 16 x 64 elements of 2 bytes in shared memory"
    assert caption.startswith("a cell is row.chunk")
    assert path.read_text().count("stroke-width") == 32
    assert document["files"] == [str(path)]


def test_a_png_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "chunks.png"

    ran = run("swizzle", "--png", str(path))

    assert ran.exit_code == 0, ran.exception
    assert path.read_bytes().startswith(b"\x89PNG")
    assert ran.output.endswith(f"Written: {path}\n")


@pytest.mark.usefixtures("without_matplotlib")
def test_a_png_without_matplotlib_is_refused() -> None:
    assert_refused("png is a.png; it is drawn with matplotlib", "swizzle", "--png", "a.png")


def test_the_emulator_puts_chunks_where_they_are_drawn() -> None:
    document = json_of("swizzle", "--rows", "16", "--columns", "128", "--probe", "--emulate")

    assert document["probe"] == {"on": "the emulator", "chunks": 16 * 16, "wrong": []}


def test_chunks_that_lie_elsewhere_are_listed_and_fail() -> None:
    """A chip that swaps the first two chunks, loses the third, and garbles the fourth."""

    def load(source: Any, swizzle: Swizzle) -> Any:
        assert swizzle is Swizzle.B128
        lines = source.view(np.uint8).reshape(8, 8, 16)
        drawn = np.zeros((64, 16), np.uint8)
        for row in range(8):
            for chunk in range(8):
                drawn[place("128B", row, chunk * 16, 8, 128) // 16] = lines[row, chunk]
        drawn[[0, 1]] = drawn[[1, 0]]
        drawn[2] = drawn[5]
        drawn[3] = drawn[3][::-1]
        return drawn.reshape(-1)

    devices = ProbedDevices(load_on_emulator=load)

    ran = run("swizzle", "--probe", "--emulate", "--json", on=devices)
    shown = run("swizzle", "--probe", "--emulate", on=devices)

    assert (ran.exit_code, shown.exit_code) == (1, 1)
    assert json.loads(ran.stdout)["probe"]["wrong"] == [
        {"row": 0, "number": 0, "offset": 0, "found": 16},
        {"row": 0, "number": 1, "offset": 16, "found": 0},
        {"row": 0, "number": 2, "offset": 32, "found": None},
        {"row": 0, "number": 3, "offset": 48, "found": None},
        {"row": 0, "number": 5, "offset": 80, "found": None},
    ]
    assert "On the emulator 59 of 64 chunks lie where they are drawn." in shown.output
    assert ["0.2", "32", "-"] in [line.split() for line in shown.output.splitlines()]


def test_without_a_gpu_a_probe_says_what_else_there_is() -> None:
    none = ProbedDevices(why_no_gpu=lambda: "there is none")
    sentence = "there is nothing to probe: there is none. Pass --emulate"

    assert_refused(sentence, "swizzle", "--probe", on=none)


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("mode", list(MASKS))
@pytest.mark.parametrize(
    ("dtype", "size"), [("int8", 1), ("bfloat16", 2), ("float32", 4), ("float64", 8)]
)
@pytest.mark.parametrize(("rows", "row_bytes"), [(8, 128), (24, 256), (252, 128)])
def test_the_chip_puts_chunks_where_they_are_drawn(
    mode: str, dtype: str, size: int, rows: int, row_bytes: int
) -> None:
    pytest.importorskip("cupy")

    document = json_of(
        "swizzle", "--mode", mode, "--dtype", dtype, f"--rows={rows}",
        f"--columns={row_bytes // size}", "--access=row", "--probe",
    )  # fmt: skip

    assert document["probe"]["wrong"] == []
    assert document["probe"]["chunks"] == rows * row_bytes // 16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rows", "9"), "rows is 9; ldmatrix reads eight at a time"),
        (("--rows", "0"), "rows is 0; a tile has at least one"),
        (("--rows", "4096"), "rows is 4096; a tile has at least one, and at most 232448 bytes"),
        (("--columns", "7"), "columns is 7; rows must be a multiple of 128 bytes"),
        (("--columns", "0"), "columns is 0; rows must be a multiple of 128 bytes"),
        (("--mode", "none", "--columns", "4"), "columns is 4; rows must be a multiple of 16 bytes"),
        (("--mode", "256B"), "mode is '256B'; no mode has this name. Pass one of none, 32B"),
        (("--dtype", "complex64"), "dtype is complex64; TMA has no complex numbers"),
        (("--access", "diagonal"), "Invalid value for '--access'"),
        (("--emulate",), "--emulate is set; it chooses where to probe. Pass --probe too"),
        (("--svg", "absent/folder/a.svg"), "the picture cannot be written"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(sentence, "swizzle", *arguments)
