from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import SWIZZLES
from swizzle_sums import words

from tmaasync.errors import ArgumentError
from tmaasync.modes import Swizzle
from tmaasync.swizzle import bank_conflicts, linear_offset, render, shared_offset, tile_offset

offsets = st.integers(0, 1 << 20)
swizzles = st.sampled_from(SWIZZLES)


# --- oracles: the same facts in other words -----------------------------------------------------


def swizzled_by_hand(offset: int, swizzle: Swizzle) -> int:
    """In lines of 128 bytes: unit u of line n trades places within its span with u XOR n."""
    units_per_span = swizzle.span_bytes // 16
    line, rest = divmod(offset, 128)
    unit, byte = divmod(rest, 16)
    span, place = divmod(unit, units_per_span)
    turn = line % units_per_span
    return line * 128 + (span * units_per_span + (place ^ turn)) * 16 + byte


def boxes_in_memory(tile_shape: tuple[int, ...], box_shape: tuple[int, ...]) -> list[Any]:
    """The indices of a tile as its boxes bring them, one box after the other."""
    starts = [range(0, side, box) for side, box in zip(tile_shape, box_shape, strict=True)]
    order = []
    for last in starts[-1]:
        for others in itertools.product(*starts[:-1]):
            corner = (*others, last)
            steps = itertools.product(*map(range, box_shape))
            order += [tuple(map(sum, zip(corner, step, strict=True))) for step in steps]
    return order


# --- one offset ---------------------------------------------------------------------------------


@given(offset=offsets, swizzle=swizzles)
def test_an_offset_lands_where_the_picture_says(offset: int, swizzle: Swizzle) -> None:
    assert shared_offset(offset, swizzle) == swizzled_by_hand(offset, swizzle)


@given(offset=offsets, swizzle=swizzles)
def test_a_swizzle_is_an_involution(offset: int, swizzle: Swizzle) -> None:
    assert shared_offset(shared_offset(offset, swizzle), swizzle) == offset
    assert linear_offset(shared_offset(offset, swizzle), swizzle) == offset


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_arrays_are_mapped_like_numbers(swizzle: Swizzle) -> None:
    many = np.arange(2048)

    assert shared_offset(many, swizzle).tolist() == [
        shared_offset(one, swizzle) for one in range(2048)
    ]


def test_larger_atoms_stay_whole() -> None:
    places = np.array([0, 24, 128, 256, 384, 512 + 136])
    # Lines 0, 0, 1, 2, 3 and 5, by hand.
    wanted = {
        Swizzle.B128_ATOM_32B: [0, 24, 128 + 32, 256 + 64, 384 + 96, 640 + 32 + 8],
        Swizzle.B128_ATOM_32B_FLIP_8B: [0, 24, 128 + 32 + 8, 256 + 64, 384 + 96 + 8, 640 + 32],
        Swizzle.B128_ATOM_64B: [0, 24, 128 + 64, 256, 384 + 64, 640 + 64 + 8],
    }
    for swizzle, moved in wanted.items():
        assert shared_offset(places, swizzle).tolist() == moved


# --- a tile -------------------------------------------------------------------------------------

tiles = st.integers(1, 4).flatmap(
    lambda rank: st.tuples(
        st.lists(st.integers(1, 4), min_size=rank, max_size=rank),
        st.lists(st.integers(1, 3), min_size=rank, max_size=rank),
    )
)


@given(tile=tiles, itemsize=st.sampled_from([1, 2, 4, 8]), swizzle=swizzles)
def test_boxes_lie_one_after_the_other_and_the_last_side_is_slowest(
    tile: tuple[list[int], list[int]], itemsize: int, swizzle: Swizzle
) -> None:
    box_shape, boxes = map(tuple, tile)
    tile_shape = tuple(side * count for side, count in zip(box_shape, boxes, strict=True))

    for number, index in enumerate(boxes_in_memory(tile_shape, box_shape)):
        place = tile_offset(index, tile_shape, box_shape, itemsize, swizzle)
        assert place == swizzled_by_hand(number * itemsize, swizzle)


@pytest.mark.parametrize("swizzle", [Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_a_tile_split_along_its_last_side_is_chunks_of_dense_rows(swizzle: Swizzle) -> None:
    columns = swizzle.span_bytes // 2
    tile_shape, box_shape = (3, 8, 4 * columns), (3, 8, columns)
    index = tuple(np.indices(tile_shape))

    places = tile_offset(index, tile_shape, box_shape, 2)

    chunked = np.arange(math.prod(tile_shape)).reshape(4, 3, 8, columns) * 2
    assert np.array_equal(places, chunked.transpose(1, 2, 0, 3).reshape(tile_shape))


def test_a_tile_that_boxes_do_not_divide_has_gaps() -> None:
    assert tile_offset((0, 4), (2, 6), (2, 4), 4) == 2 * 4 * 4


@pytest.mark.parametrize(
    ("index", "tile", "box", "itemsize"),
    [
        ((0,), (2, 2), (2, 2), 2),
        ((), (), (), 2),
        ((0, 0), (2, 2), (0, 2), 2),
        ((0,), (2,), (2,), 0),
    ],
)
def test_impossible_tiles_are_refused(index: Any, tile: Any, box: Any, itemsize: int) -> None:
    with pytest.raises(ArgumentError):
        tile_offset(index, tile, box, itemsize)


# --- banks --------------------------------------------------------------------------------------


@given(data=st.data(), access_bytes=st.sampled_from([1, 2, 4, 8, 16]))
def test_conflicts_are_those_counted_word_by_word(data: st.DataObject, access_bytes: int) -> None:
    places = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=32))
    addresses = [place * access_bytes for place in places]

    counted = [max(banks) - 1 for banks in words(addresses, access_bytes)]
    assert bank_conflicts(addresses, access_bytes) == sum(counted)


@pytest.mark.parametrize(
    ("addresses", "access_bytes"), [([0], 3), ([2], 4), (list(range(33)), 1), ([], 4)]
)
def test_impossible_accesses_are_refused(addresses: list[int], access_bytes: int) -> None:
    with pytest.raises(ArgumentError):
        bank_conflicts(addresses, access_bytes)


# --- the picture --------------------------------------------------------------------------------


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_every_chunk_is_drawn_once(swizzle: Swizzle) -> None:
    columns = max(swizzle.span_bytes, 64) // 2
    drawn = render((8, 2 * columns), (8, columns), 2, swizzle, lines=1000)

    cells = [cell for line in drawn.splitlines()[1:] for cell in line.split("|")[1].split()]
    expected = {f"{row}.{chunk}" for row in range(8) for chunk in range(2 * columns // 8)}
    assert set(cells) == expected
    assert len(cells) == len(expected)


def test_a_long_tile_is_cut_and_says_so() -> None:
    drawn = render((64, 64), (64, 64), 2, Swizzle.B128, lines=4).splitlines()

    assert len(drawn) == 1 + 4 + 1
    assert drawn[-1] == "   ... 7680 bytes more"


def test_a_narrow_box_cannot_be_drawn() -> None:
    with pytest.raises(ArgumentError, match="multiple of 16"):
        render((4, 4), (4, 4), 2)
