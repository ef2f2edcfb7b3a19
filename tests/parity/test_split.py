"""Tiles in whole chunks of memory with run-time extents, folded into one instruction and not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from parity.test_tiles import LOAD, LOAD_ELECT, STORE, launch
from parity.tile_oracle import loaded, stored

from tmaasync import Kernel, Swizzle, create_split_tma

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


FOLDS = [(Swizzle.B128, 2), (Swizzle.B64, 4), (Swizzle.NONE, 16)]
FOLD_PLACES = [*itertools.product((0, 16, 24, -8), range(HEADS), (0,)), (8, 1, 64)]


def load_folded(backend: Any, swizzle: Swizzle, fold_chunks: int) -> tuple[Any, Any]:
    """The tile, and its bytes in shared memory at each of `FOLD_PLACES`."""
    tile = create_split_tma(
        backend.array(memory((ROWS + 9) * HEADS * DEPTH)),
        (16, 1, DEPTH),
        gmem_shape=(ROWS, HEADS, DEPTH),
        swizzle=swizzle,
        fold_chunks=fold_chunks,
    )
    images = backend.array(np.full((len(FOLD_PLACES), tile.tile_bytes), 0xCC, np.uint8))
    launch(backend, tile, FOLD_PLACES, images, LOAD_ELECT)
    return tile, backend.host(images)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize(("swizzle", "fold"), FOLDS)
def test_folding_moves_the_same_bytes(backend: Any, swizzle: Swizzle, fold: int) -> None:
    whole = memory((ROWS + 9) * HEADS * DEPTH)
    array = whole[: ROWS * HEADS * DEPTH].reshape(ROWS, HEADS, DEPTH)
    box = (16, 1, swizzle.span_bytes // 2)

    for fold_chunks in (1, fold):
        tile, got = load_folded(backend, swizzle, fold_chunks)

        for image, place in zip(got, FOLD_PLACES, strict=True):
            wanted = loaded(array, place, (16, 1, DEPTH), box, span_bits=int(swizzle))
            assert np.array_equal(image, wanted), (fold_chunks, place)
    assert tile.boxes_per_tile == 1


ATOM_PLACES = [*itertools.product((0, 8, 16), range(HEADS), (0,))]


def load_atoms(backend: Any, swizzle: Swizzle) -> Any:
    """A row-major tile's bytes in shared memory at each of `ATOM_PLACES`."""
    tile = create_split_tma(
        backend.array(memory(24 * HEADS * DEPTH).reshape(24, HEADS, DEPTH)),
        (16, 1, DEPTH),
        swizzle=swizzle,
        fold_chunks=DEPTH // (swizzle.span_bytes // 2),
        row_major=True,
    )
    images = backend.array(np.full((len(ATOM_PLACES), tile.tile_bytes), 0xCC, np.uint8))
    launch(backend, tile, ATOM_PLACES, images, LOAD)
    return backend.host(images)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("swizzle", [Swizzle.B128, Swizzle.B32])
def test_row_major_atoms(backend: Any, swizzle: Swizzle) -> None:
    array = memory(24 * HEADS * DEPTH).reshape(24, HEADS, DEPTH)

    got = load_atoms(backend, swizzle)

    for image, (row, head, _) in zip(got, ATOM_PLACES, strict=True):
        wanted = np.zeros((16, DEPTH), np.float16)
        wanted[: 24 - row] = array[row : row + 16, head]
        assert np.array_equal(image, atoms(wanted, swizzle.span_bytes // 2, swizzle)), (row, head)


STORE_PLACES = [*itertools.product((0, 16), range(HEADS), (0,))]


def store_folded(backend: Any) -> tuple[Any, Any]:
    """The array after folded tiles of random bits were stored, and these."""
    target = backend.array(memory(ROWS * HEADS * DEPTH).reshape(ROWS, HEADS, DEPTH))
    tile = create_split_tma(target, (16, 1, DEPTH), swizzle=Swizzle.B128, fold_chunks=2)
    shape = (len(STORE_PLACES), tile.tile_bytes)
    images = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    launch(backend, tile, STORE_PLACES, backend.array(images), STORE)
    return backend.host(target).view(np.uint16), images


def test_a_folded_tile_is_stored_too(backend: Any) -> None:
    got, images = store_folded(backend)

    wanted = memory(ROWS * HEADS * DEPTH).reshape(ROWS, HEADS, DEPTH).view(np.uint16)
    for image, place in zip(images, STORE_PLACES, strict=True):
        stored(
            wanted, image, place, (16, 1, DEPTH), (16, 1, 64), lambda old, given: given, span_bits=3
        )
    assert np.array_equal(got, wanted)


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


SIDES = """
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void sides(int* out) {
    for (int dim = 0; dim < Tile::kRank; ++dim) out[dim] = Tile::side(dim);
}
"""


@pytest.mark.parametrize(("fold_chunks", "row_major"), [(1, False), (2, False), (2, True)])
def test_a_folded_tile_has_the_sides_of_its_array(
    backend: Any, fold_chunks: int, *, row_major: bool
) -> None:
    tile = create_split_tma(
        backend.array(np.zeros((64, HEADS, DEPTH), np.float16)),
        (16, 1, DEPTH),
        swizzle=Swizzle.B128,
        fold_chunks=fold_chunks,
        row_major=row_major,
    )
    out = backend.array(np.full(3, -1, np.int32))
    Kernel(SIDES, "sides", types={"Tile": tile})(1, 1, (out,))

    assert backend.host(out).tolist() == [16, 1, DEPTH]
