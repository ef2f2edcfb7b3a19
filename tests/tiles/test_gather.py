"""Tiles of gathered rows on the host: bytes and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import Swizzle, TensorMapError, create_tma_tile_gather4, gather4_tile_bytes


def test_bytes_are_counted_in_whole_chunks() -> None:
    tile = create_tma_tile_gather4(np.zeros((9, 256), np.float16), (4, 100), swizzle=Swizzle.B128)

    assert tile.tile_bytes == gather4_tile_bytes((4, 100), "float16", swizzle=Swizzle.B128) == 1024


@pytest.mark.parametrize(
    ("shape", "tile_shape", "swizzle", "said"),
    [
        ((8, 64), (6, 64), Swizzle.B128, r"tile_shape\[0\] is 6; .*Use 8 rows"),
        ((8, 64), (4, 64), Swizzle.B64, "swizzle is Swizzle.B64; .*need sm_100.*Use Swizzle.B128"),
        ((8, 64), (4, 24), Swizzle.NONE, "96 bytes would start the next one off"),
        ((2, 8, 64), (4, 64), Swizzle.B128, "array is of 3 dimensions"),
        ((8, 64), (4, 0), Swizzle.B128, r"tile_shape\[1\] is 0"),
    ],
)
def test_what_is_refused_is_named(
    shape: tuple[int, ...], tile_shape: tuple[int, int], swizzle: Swizzle, said: str
) -> None:
    with pytest.raises(TensorMapError, match=said):
        create_tma_tile_gather4(np.zeros(shape, np.float32), tile_shape, swizzle=swizzle)
