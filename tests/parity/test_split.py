"""Tiles in whole chunks of memory with run-time extents, folded into one instruction and not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from parity.test_tiles import LOAD, LOAD_ELECT, STORE, launch
from parity.tile_oracle import loaded, stored

from tmaasync import ReduceOp, Swizzle, create_split_tma

ROWS, HEADS, DEPTH = 21, 3, 128


def memory(count: int) -> Any:
    return np.random.default_rng(count).standard_normal(count).astype(np.float16)


def atoms(tile: np.ndarray[Any, Any], chunk: int, swizzle: Swizzle) -> np.ndarray[Any, Any]:
    """The bytes of [rows / 8][chunks][8][chunk], every eight rows of a chunk a box."""
    rows, depth = tile.shape
    parts = [
        loaded(tile, (row, column), (8, chunk), (8, chunk), span_bits=int(swizzle))
        for row in range(0, rows, 8)
        for column in range(0, depth, chunk)
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("swizzle", "fold"), [(Swizzle.B128, 2), (Swizzle.B64, 4), (Swizzle.NONE, 16)]
)
def test_folding_moves_the_same_bytes(backend: Any, swizzle: Swizzle, fold: int) -> None:
    whole = memory((ROWS + 9) * HEADS * DEPTH)
    array = whole[: ROWS * HEADS * DEPTH].reshape(ROWS, HEADS, DEPTH)
    places = list(itertools.product((0, 16, 24, -8), range(HEADS), (0,)))
    places.append((8, 1, 64))
    chunk = swizzle.span_bytes // 2
    on_backend = backend.array(whole)

    for fold_chunks in (1, fold):
        tile = create_split_tma(
            on_backend,
            (16, 1, DEPTH),
            gmem_shape=(ROWS, HEADS, DEPTH),
            swizzle=swizzle,
            fold_chunks=fold_chunks,
        )
        images = backend.array(np.full((len(places), tile.tile_bytes), 0xCC, np.uint8))
        launch(backend, tile, places, images, LOAD_ELECT)

        got = backend.host(images)
        for image, place in zip(got, places, strict=True):
            box = (16, 1, chunk)
            wanted = loaded(array, place, (16, 1, DEPTH), box, span_bits=int(swizzle))
            assert np.array_equal(image, wanted), (fold_chunks, place)
    assert tile.boxes_per_tile == 1


@pytest.mark.parametrize("swizzle", [Swizzle.B128, Swizzle.B32])
def test_row_major_atoms(backend: Any, swizzle: Swizzle) -> None:
    array = memory(24 * HEADS * DEPTH).reshape(24, HEADS, DEPTH)
    chunk = swizzle.span_bytes // 2
    places = list(itertools.product((0, 8, 16), range(HEADS), (0,)))
    tile = create_split_tma(
        backend.array(array),
        (16, 1, DEPTH),
        swizzle=swizzle,
        fold_chunks=DEPTH // chunk,
        row_major=True,
    )

    images = backend.array(np.full((len(places), tile.tile_bytes), 0xCC, np.uint8))
    launch(backend, tile, places, images, LOAD)

    got = backend.host(images)
    for image, (row, head, _) in zip(got, places, strict=True):
        wanted = np.zeros((16, DEPTH), np.float16)
        wanted[: 24 - row] = array[row : row + 16, head]
        assert np.array_equal(image, atoms(wanted, chunk, swizzle)), (row, head)


def test_a_folded_tile_is_stored_too(backend: Any) -> None:
    before = memory(ROWS * HEADS * DEPTH).reshape(ROWS, HEADS, DEPTH)
    places = list(itertools.product((0, 16), range(HEADS), (0,)))
    target = backend.array(before)
    tile = create_split_tma(target, (16, 1, DEPTH), swizzle=Swizzle.B128, fold_chunks=2)
    images = np.random.default_rng(1).integers(0, 256, (len(places), tile.tile_bytes), np.uint8)

    launch(backend, tile, places, backend.array(images), STORE, ReduceOp.ADD)

    wanted = before.copy()
    for image, place in zip(images, places, strict=True):
        stored(
            wanted.view(np.uint16),
            image,
            place,
            (16, 1, DEPTH),
            (16, 1, 64),
            lambda old, given: given,
            span_bits=3,
        )
    assert np.array_equal(backend.host(target).view(np.uint16), wanted.view(np.uint16))


def test_a_last_side_that_no_chunk_divides_is_padded_with_fill(backend: Any) -> None:
    array = memory(40 * 80).reshape(40, 80)
    tile = create_split_tma(backend.array(array), (32, 80), swizzle=Swizzle.B128)

    images = backend.array(np.full((2, tile.tile_bytes), 0xCC, np.uint8))
    launch(backend, tile, [(0, 0), (32, 0)], images, LOAD)

    got = backend.host(images)
    assert tile.tile_bytes == 32 * 128 * 2
    for image, row in zip(got, (0, 32), strict=True):
        wanted = loaded(array, (row, 0), (32, 128), (32, 64), span_bits=3)
        assert np.array_equal(image, wanted)
