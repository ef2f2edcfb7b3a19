"""Tiles of patch matrices on the host: shapes, corners, the kernel's numbers, and refusals."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tmaasync import (
    ArgumentError,
    Im2colSpec,
    StaleTileError,
    Swizzle,
    TensorMapError,
    create_tma_tile_im2col,
)

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
def test_the_outputs_equal_a_convolution(
    extent: int, taps: int, stride: int, dilation: int, before: int, after: int
) -> None:
    positions = [
        start
        for start in range(-before, extent + after, stride)
        if start + (taps - 1) * dilation < extent + after
    ]
    assume(positions)

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


@given(
    extents=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    channels=st.sampled_from([32, 64, 96]),
    taps=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dilations=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.tuples(st.integers(0, 9), st.integers(0, 9))] * 2),
    steps=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_loads_start_where_an_im2col_loop_reads(
    extents: tuple[int, int],
    channels: int,
    taps: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    steps: tuple[int, int],
) -> None:
    """The loop: for each place of the column, which pixel of the images is read there."""
    (high, wide), block_m, block_k = extents, 16, 32
    out_h, out_w = (
        (extent + sum(pad) - dilation * (tap - 1) - 1) // stride + 1
        for extent, pad, dilation, tap, stride in zip(
            extents, padding, dilations, taps, strides, strict=True
        )
    )
    assume(out_h > 0 and out_w > 0)
    tile = make(
        np.zeros((3, high, wide, channels), np.float16),
        (block_m, block_k),
        filter_shape=taps,
        stride=strides,
        dilation=dilations,
        padding=padding,
        swizzle=Swizzle.B64,
    )
    m, k = steps[0] * block_m, steps[1] * block_k
    tap_h, tap_w = k // channels // taps[1], k // channels % taps[1]

    (image, h, w, channel), offsets = tile.load_coordinates(m, k)

    assert image == m // (out_h * out_w)
    if tap_h >= taps[0]:
        assert channel >= channels
        return
    assert channel == k % channels
    assert h + offsets[0] == (
        m // out_w % out_h * strides[0] + tap_h * dilations[0] - padding[0][0]
    )
    assert w + offsets[1] == m % out_w * strides[1] + tap_w * dilations[1] - padding[1][0]


@pytest.mark.parametrize("place", [(-1, 0), (0, -64), (0, 32)])
def test_a_load_starts_in_the_matrix_at_a_whole_box(place: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="multiple of the 64 channels of a box"):
        make().load_coordinates(*place)


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
        ({"padding": -1}, "padding is -1.*slice the images"),
        ({"padding": (1, 2, 3)}, "padding is"),
        ({"padding": 1.5}, "padding is 1.5"),
        ({"padding": "same"}, "padding is 'same'"),
        ({"lower_corner": (0, 0)}, "the bounding box has both"),
        (
            {"padding": (1, 0), "lower_corner": (0, 0), "upper_corner": (0, 0)},
            r"padding is \(1, 0\); lower_corner and upper_corner replace it",
        ),
        ({"lower_corner": (0,), "upper_corner": (0, 0)}, "lower_corner is"),
        ({"lower_corner": 0, "upper_corner": 0}, "lower_corner is 0; it must be one integer per"),
        ({"lower_corner": (0, "1"), "upper_corner": (0, 0)}, r"lower_corner\[1\] is '1'"),
        ({"filter_shape": 3}, "filter_shape is 3; it must be one integer per dimension"),
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
