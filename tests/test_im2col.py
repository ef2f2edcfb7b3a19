"""Tiles of patch matrices on the host: shapes, corners, the kernel's numbers, and refusals."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import Im2colSpec, StaleTileError, Swizzle, TensorMapError, create_tma_tile_im2col

IMAGES = np.zeros((4, 14, 18, 64), np.float16)


def make(images: Any = IMAGES, tile: tuple[int, int] = (64, 64), **changes: Any) -> Any:
    options = {"filter_shape": (3, 3), "swizzle": Swizzle.B128, **changes}
    return create_tma_tile_im2col(images, tile, **options)


@given(
    extent=st.integers(8, 40),
    taps=st.integers(1, 5),
    stride=st.integers(1, 8),
    dilation=st.integers(1, 2),
    before=st.integers(0, 6),
    after=st.integers(0, 6),
)
def test_the_outputs_are_those_of_a_convolution(
    extent: int, taps: int, stride: int, dilation: int, before: int, after: int
) -> None:
    positions = [
        start
        for start in range(-before, extent + after, stride)
        if start + (taps - 1) * dilation < extent + after
    ]

    tile = make(
        np.zeros((2, extent, 64), np.float16),
        filter_shape=(taps,),
        stride=stride,
        dilation=dilation,
        padding=[(before, after)],
    )

    assert tile.output_shape == (2, len(positions), taps * 64)
    assert tile.matrix_shape == (2 * len(positions), taps * 64)


@pytest.mark.parametrize("padding", [1, (1, 1), [(1, 1), (1, 1)]])
def test_padding_has_three_forms(padding: Any) -> None:
    tile = make(padding=padding)

    assert (tile.spec.lower_corner, tile.spec.upper_corner) == ((-1, -1), (-1, -1))
    assert tile.output_shape == (4, 14, 18, 576)


def test_corners_may_be_given_themselves() -> None:
    tile = make(lower_corner=(2, -3), upper_corner=(-4, 1))

    assert tile.output_shape == (4, 14 - 2 - 4, 18 + 3 + 1, 576)


def test_the_map_is_the_drivers_im2col_map() -> None:
    tile = make(padding=1, stride=(2, 3))

    assert isinstance(tile.spec, Im2colSpec)
    assert tile.spec.element_strides == (1, 2, 3, 1)
    assert (tile.spec.pixels_per_column, tile.spec.channels_per_pixel) == (64, 64)
    assert tile.descriptor == tile.spec.encode()


def test_the_kernels_parameter_is_the_map_and_the_window_innermost_first() -> None:
    tile = make(padding=1, stride=(2, 3), dilation=(4, 5), filter_shape=(3, 2))
    _, high, wide, _ = tile.output_shape

    numbers = struct.unpack("<12I3iI", tile.argument[128:192])

    assert tile.argument[:128] == tile.descriptor
    assert len(tile.argument) == 256
    assert numbers == (wide, high, 1, 2, 3, 1, 3, 2, 1, 5, 4, 1, -1, -1, 0, 64)


def test_channels_are_rounded_up_to_whole_chunks() -> None:
    tile = make(np.zeros((2, 8, 8, 72), np.float16))

    assert tile.channels == 128
    assert tile.matrix_shape == (2 * 6 * 6, 9 * 128)


def test_rebind_moves_the_map_to_other_images() -> None:
    other = np.zeros_like(IMAGES)

    tile = make().rebind(other)

    assert tile.spec.address == other.ctypes.data
    with pytest.raises(TensorMapError, match="the tile was made for"):
        tile.rebind(np.zeros((4, 14, 18, 128), np.float16))


def test_images_that_went_away_are_noticed() -> None:
    images = np.zeros((2, 8, 8, 64), np.float16)
    tile = make(images)
    tile.check_alive()

    images.resize((0,), refcheck=False)

    with pytest.raises(StaleTileError):
        tile.check_alive()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": np.zeros((4, 64), np.float16)}, "array is of 2 dimensions"),
        ({"filter_shape": (3,)}, r"filter_shape is \(3,\); the images have 2 spatial"),
        ({"stride": (1, 9)}, r"element_strides\[2\] is 9"),
        ({"stride": 0}, r"stride\[0\] is 0"),
        ({"dilation": (1, 1, 1)}, "dilation is"),
        ({"padding": -1}, "padding is -1.*Crop with lower_corner"),
        ({"padding": (1, 2, 3)}, "padding is"),
        ({"lower_corner": (0, 0)}, "the bounding box has both"),
        ({"lower_corner": (0,), "upper_corner": (0, 0)}, "lower_corner is"),
        ({"filter_shape": (3, 300)}, r"filter_shape\[1\] is 300; .* allow 255"),
        ({"padding": 200}, "lower_corner"),
        ({"filter_shape": (20, 3)}, "corner"),
        ({"tile": (64, 96)}, r"tile_shape\[1\] is 96; a box has 64 channels"),
        ({"box_shape": (2048, 64), "tile": (2048, 64)}, "pixels_per_column is 2048"),
        ({"images": IMAGES[..., ::2]}, "the last dimension must be contiguous"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TensorMapError, match=said):
        make(**changes)
