"""tcgen05.cp puts rows of shared memory into lanes of tensor memory, and shift moves lanes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from planted import RACE, Edit, defects, without
from planted_choices import choices

from tmaasync import Kernel, emulate

Words = npt.NDArray[np.uint32]
SOURCE = (Path(__file__).parent / "copies.cu").read_text(encoding="utf-8")
AT = 4  # the first column
# The copies of `move`: rows, and bytes of a row.
ROWS = {0: (128, 32), 1: (128, 16), 2: (64, 16), 3: (64, 16), 4: (32, 16), 5: (4, 32)}
DEFECTS = defects(
    "moved",
    ("no proxy fence after the writes", without("fence_async_view_proxy();"), RACE,
     r"(?s)race on image.*tcgen05\.cp.*not made visible to tcgen05\.cp.*fence_async_view_proxy"),
    ("no wait for the commit", without("shared.done.wait(0);"), RACE,
     r"(?s)tensor memory.*tcgen05\.cp.*may not have completed.*tcgen05\.commit"),
    ("a second copy is not ordered",
     Edit("tcgen05_commit(shared.done.address());",
          "move(what, tensor + 6, from + ((shared_address(shared.image) & 0x3ffff) >> 4)); @@"),
     RACE, r"(?s)tcgen05\.cp.*tcgen05\.cp.*may not have completed"),
)  # fmt: skip
TEXTS = choices(SOURCE, DEFECTS)


@functools.cache
def kernel(text: str) -> Kernel:
    return Kernel(text, "moved", arch="sm_100a")


def moved(what: int, rows: int, row_bytes: int, defect: Any = None) -> tuple[Words, Words]:
    """Return the rows as words, and all lanes afterwards."""
    source = np.random.default_rng(what).integers(0, 256, (rows, row_bytes), np.uint8)
    image = np.zeros(4096, np.uint8)
    for row in range(rows):
        for unit in range(row_bytes // 16):
            start = row // 8 * 128 + unit * (rows + 7) // 8 * 8 * 16 + row % 8 * 16
            image[start : start + 16] = source[row, 16 * unit : 16 * unit + 16]
    matrix = (rows + 7) // 8 * 8 << 16 | 8 << 32 | 1 << 46
    out = np.zeros((128, 32), np.uint32)
    built = kernel(TEXTS.text_with(defect))
    TEXTS.choose(built, defect)
    built(1, 128, (what, image.view(np.uint32), matrix, out))
    return source.view(np.uint32), out


def lanes_of(what: int, row: int) -> list[int]:
    """Return the lanes that get a row."""
    return {
        2: [row, row + 64],
        3: [row // 32 * 64 + row % 32, row // 32 * 64 + row % 32 + 32],
        4: [row, row + 32, row + 64, row + 96],
        5: [row * 32],
    }.get(what, [row])


def untouched() -> Words:
    return np.arange(128 * 32, dtype=np.uint32).reshape(128, 32)


@pytest.mark.parametrize("what", ROWS)
def test_a_copy_fills_the_lanes_of_its_shape(what: int) -> None:
    rows, out = moved(what, *ROWS[what])

    wanted = untouched()
    for row, words in enumerate(rows):
        for lane in lanes_of(what, row):
            wanted[lane, AT : AT + len(words)] = words
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(("what", "bits"), [(6, 4), (7, 6)])
def test_a_copy_expands_elements_of_4_and_6_bits(what: int, bits: int) -> None:
    rows, out = moved(what, 128, 16)

    found = out[:, AT : AT + 4].copy().view(np.uint8)
    for row, words in enumerate(rows):
        packed = int.from_bytes(words.tobytes(), "little")
        elements = [packed >> bits * i & (1 << bits) - 1 for i in range(16)]
        shift = 2 if bits == 4 else 0
        assert found[row].tolist() == [one << shift for one in elements]


def test_a_shift_moves_each_lane_down_but_for_the_last() -> None:
    _, out = moved(8, 4, 32)

    wanted = untouched()
    wanted[:-1, AT : AT + 8] = wanted[1:, AT : AT + 8]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported(defect: Any) -> None:
    for seed in range(3):
        with (
            emulate.scheduled("random", seed=seed, races=True),
            pytest.raises(defect.reported, match=defect.says),
        ):
            moved(1, *ROWS[1], defect)
