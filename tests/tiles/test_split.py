"""Tiles in whole chunks on the host: shapes of map and memory, rebinding, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import SplitLastDimTMATensorTile, Swizzle, TensorMapError, create_split_tma

CACHE = np.zeros((64, 4, 128), np.float16)


def make(array: Any = CACHE, tile: Any = (16, 1, 128), **changes: Any) -> SplitLastDimTMATensorTile:
    return create_split_tma(array, tile, **{"swizzle": Swizzle.B128, **changes})


def test_the_unfolded_tile_is_an_ordinary_one() -> None:
    tile = make()

    assert (tile.box_shape, tile.boxes_per_tile) == ((16, 1, 64), 2)
    assert tile.cuda_type.startswith("tmaasync::TMATensorTile<")
    assert tile.smem_shape == (16, 1, 128)


def test_folding_makes_the_chunks_a_dimension() -> None:
    spec = make(fold_chunks=2).spec

    assert spec.shape == (4, 2, 64, 64)
    assert spec.strides_bytes == (256, 128, 1024)
    assert spec.box_shape == (1, 2, 16, 64)


def test_row_major_makes_groups_of_eight_rows_a_dimension() -> None:
    spec = make(fold_chunks=2, row_major=True).spec

    assert spec.shape == (4, 8, 2, 8, 64)
    assert spec.strides_bytes == (256, 8192, 128, 1024)
    assert spec.box_shape == (1, 2, 2, 8, 64)


def test_extents_may_be_fewer_than_the_memory_holds() -> None:
    assert make(gmem_shape=(10, 4, 128)).spec.shape == (10, 4, 128)
    assert make(CACHE.reshape(-1), gmem_shape=(32, 8, 128)).spec.shape == (32, 8, 128)


def test_rebind_keeps_the_shape_and_moves_the_memory() -> None:
    other = np.zeros(CACHE.size, np.float16)

    tile = make(gmem_shape=(10, 4, 128), fold_chunks=2).rebind(other)

    assert isinstance(tile, SplitLastDimTMATensorTile)
    assert tile.spec.address == other.ctypes.data
    assert tile.spec.shape == (4, 2, 10, 64)
    with pytest.raises(TensorMapError, match="it has 5120 elements and the array 100"):
        tile.rebind(np.zeros(100, np.float16))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gmem_shape": (65, 4, 128)}, r"gmem_shape is .* 33280 elements and the array 32768"),
        ({"array": CACHE[:, :2]}, "laid over contiguous memory"),
        ({"tile": (16, 1)}, "tile_shape is"),
        ({"gmem_shape": (64, 0, 128)}, r"gmem_shape\[1\] is 0"),
        ({"fold_chunks": 3}, "fold_chunks is 3; one instruction moves the whole depth.*Pass 2"),
        ({"fold_chunks": 0}, "fold_chunks is 0"),
        ({"row_major": True}, "fold_chunks is 1; it folds"),
        ({"fold_chunks": 2, "tile": (16, 2, 128)}, "fold_chunks is 2; it folds"),
        ({"fold_chunks": 2, "gmem_shape": (64, 4, 96)}, r"gmem_shape\[2\] is 96"),
        (
            {"fold_chunks": 2, "row_major": True, "gmem_shape": (60, 4, 128)},
            r"gmem_shape\[0\] is 60",
        ),
        ({"fold_chunks": 2, "row_major": True, "tile": (12, 1, 128)}, r"tile_shape\[0\] is 12"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TensorMapError, match=said):
        make(**changes)
