"""Convolutions without a GPU: what is refused, and how the output is cut."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from stubs import check_binding

from tmaasync import ArgumentError, ArrayTypeError, _arrays, ops
from tmaasync._tile.window import window_of
from tmaasync.ops._conv2d import Conv2d, Views, window_over
from tmaasync.ops._gemm.coefficients import coefficients
from tmaasync.ops._gemm.config import Occupancy
from tmaasync.ops._gemm.conv2d_forms import Conv2dForm, ranked_conv2d_forms
from tmaasync.ops._gemm.epilogue import BiasSide, Epilogue
from tmaasync.ops._layouts import Layout

IMAGES = np.zeros((2, 12, 14, 16), np.float16)
FILTERS = np.zeros((24, 3, 3, 16), np.float16)


def refused(error: type[Exception], said: str, **changes: Any) -> None:
    options = {"images": IMAGES, "filters": FILTERS, **changes}
    with pytest.raises(error, match=said):
        ops.conv2d(**options)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"images": IMAGES[0]},
            r"images\.shape is \(12, 14, 16\); it must be \[N, H, W, C\]\. For",
        ),
        ({"filters": FILTERS[0]}, r"filters\.shape is .*must be \[K, R, S, C\]\. For KCRS filters"),
        ({"bias": np.zeros((24, 1), np.float16)}, r"bias\.shape is \(24, 1\); it must be \[K\]"),
        ({"bias": np.zeros(23, np.float16)}, r"bias\.shape is \(23,\); there are 24 filters.*Pass"),
        (
            {"filters": np.zeros((24, 3, 3, 8), np.float16)},
            r"filters\.shape\[3\] is 8; images have 16 channels.*in groups one group after the",
        ),
        (
            {"images": IMAGES[..., :12], "filters": FILTERS[..., :12]},
            r"images\.shape\[3\] is 12; .* 16 bytes, 8 of them\. Pad .* to 16 channels",
        ),
        ({"images": IMAGES[..., :0], "filters": FILTERS[..., :0]}, r"is 0; .* to 8 channels"),
        ({"images": IMAGES[:, :0]}, r"images\.shape\[1\] is 0; there are no pixels"),
        ({"filters": FILTERS[:, :0]}, r"filters\.shape\[1\] is 0; it must be a positive integer"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArgumentError, said, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": IMAGES.astype(np.float32)}, "images holds float32; .* Convert it with astype"),
        ({"filters": FILTERS.astype(np.int8)}, "filters holds int8; the kernel multiplies"),
        ({"images": IMAGES.view("V2"), "filters": FILTERS}, "images"),
        ({"bias": np.zeros(24, np.float64)}, "bias holds float64; it must hold float32 or float16"),
        ({"dtype": np.int32}, "dtype is int32; the output can be bfloat16, float16, float32"),
        (
            {"out": np.zeros((2, 10, 12, 24), np.float64)},
            "out holds float64; it must hold bfloat16",
        ),
        (
            {"out": np.zeros((2, 10, 12, 24), np.float16), "dtype": np.float32},
            r"out holds float16; it must hold float32\. Leave out dtype= or out=",
        ),
    ],
)
def test_types_that_the_kernel_lacks_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArrayTypeError, said, **changes)


def test_an_activation_that_the_kernel_lacks_is_refused() -> None:
    said = r"activation is 'tanh'; the kernel has relu, gelu, gelu_tanh, silu\. Pass one of them"

    refused(ArgumentError, said, activation="tanh")


def test_operands_of_two_types_are_refused() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    refused(
        ArrayTypeError,
        "filters holds bfloat16 and images float16; the tensor cores take one type. Convert one",
        filters=FILTERS.astype(ml_dtypes.bfloat16),
    )


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({"stride": 0}, r"stride\[0\] is 0; it must be a positive integer"),
        ({"stride": (1, 9)}, r"stride\[1\] is 9; TMA steps over images by 1 to 8.*slice every"),
        ({"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\); .*2 spatial dimensions.*Pass 2 numbers"),
        ({"dilation": 1.5}, r"dilation\[0\] is 1\.5; it must be a positive integer"),
        ({"padding": -1}, "padding is -1; it is a number of pixels, 0 or more"),
        ({"padding": "same"}, "padding is 'same'; it is a number of pixels"),
        ({"padding": b"ab"}, "padding is b'ab'; it is a number of pixels"),
        ({"padding": ((1, 2), (3,))}, r"padding is \(\(1, 2\), \(3,\)\)"),
        ({"padding": 129}, r"padding\[0\] is \(129, 129\); TMA starts at most 128 pixels before"),
        (
            {"padding": ((0, 0), (0, 130))},
            (
                r"padding\[1\] is \(0, 130\); filters reach 2 pixels along the width, and TMA "
                r"allows padding after the images from 0 to 129\. Pad the images themselves"
            ),
        ),
        (
            {"dilation": 70, "padding": ((128, 11), (128, 12))},
            r"padding\[0\] is \(128, 11\); filters reach 140 pixels along the height, .* 12 to 267",
        ),
        (
            {"dilation": (6, 1)},
            (
                r"filters\.shape\[1\] is 3; with dilation 6 filters span 13 pixels, and the padded "
                r"images have 12\. Use a smaller filter, or more padding"
            ),
        ),
        (
            {"filters": np.zeros((8, 3, 17, 16), np.float16), "padding": 1},
            r"filters\.shape\[2\] is",
        ),
    ],
)
def test_windows_that_tma_cannot_step_over_are_refused(window: dict[str, Any], said: str) -> None:
    refused(ArgumentError, said, **window)


def test_every_broken_rule_of_a_window_is_reported_at_once() -> None:
    with pytest.raises(ArgumentError) as caught:
        ops.conv2d(IMAGES, FILTERS, stride=(9, 10), padding=((200, 0), (0, 0)))

    assert len(str(caught.value).splitlines()) == 3


def test_outputs_that_do_not_fit_are_refused() -> None:
    refused(
        ArgumentError,
        r"out has shape \(2, 12, 14, 24\) in host memory; the convolution has shape "
        r"\(2, 10, 12, 24\)",
        out=np.zeros((2, 12, 14, 24), np.float16),
    )
    fixed = np.zeros((2, 10, 12, 24), np.float16)
    fixed.flags.writeable = False
    refused(ArgumentError, "out is read only", out=fixed)


def test_an_output_over_an_operand_is_refused() -> None:
    filters = np.zeros((16, 1, 1, 16), np.float16)
    wide = np.zeros((*IMAGES.shape[:3], 48), np.float16)

    refused(
        ArgumentError, "out overlaps images .* an array of its own", filters=filters, out=IMAGES
    )
    refused(
        ArgumentError,
        "out overlaps images",
        images=wide[..., :16],
        filters=filters,
        out=wide[..., 8:24],
    )


def form_of(
    images: tuple[int, ...], filters: tuple[int, int, int], stride: int = 1, **options: Any
) -> Conv2dForm:
    """Return the choice for filters [K, R, S] with padding of half their size."""
    k, *taps = filters
    window = window_of(2, tuple(taps), stride, 1, taps[0] // 2)
    occupancy = Occupancy.estimated(options.pop("sms", 132))
    return ranked_conv2d_forms(images, k, window, occupancy, **options)[0]


@pytest.mark.parametrize("sms", [114, 132])
@pytest.mark.parametrize(
    ("images", "k", "stride", "least"),
    [
        ((128, 28, 28, 128), 128, 1, 0.9),
        ((128, 14, 14, 256), 256, 1, 0.85),
        ((32, 64, 64, 320), 320, 1, 0.9),
        ((32, 32, 32, 640), 640, 1, 0.85),
        ((32, 16, 16, 1280), 1280, 1, 0.8),
        ((32, 56, 56, 256), 512, 2, 0.85),
    ],
)
def test_tiles_keep_the_sms_busy(
    images: tuple[int, ...], k: int, stride: int, least: float, sms: int
) -> None:
    """The share of the tiles of all waves that is output, not beyond it or idle."""
    config = form_of(images, (k, 3, 3), stride, sms=sms).config
    m = images[0] * (images[1] // stride) ** 2

    waves = -(-config.clusters(m, k) // sms)
    used = m * k / (waves * sms * config.block_m * config.block_n)

    assert used >= least


@pytest.mark.parametrize("tile", coefficients().conv2d.tiles, ids=str)
def test_every_tile_config_is_one_that_the_kernel_can_have(
    tile: tuple[int, int, int, bool],
) -> None:
    consumers, rows, block_n, ping_pong = tile

    assert consumers * rows <= 256  # one box
    assert consumers == 2 or not ping_pong
    assert rows * block_n // 64 // 2 <= 160  # registers of a thread for its accumulators
    assert block_n % 32 == 0  # whole chunks of 64 bytes


def test_tiles_that_spill_with_an_activation_are_not_taken() -> None:
    sizes = [(64, 320, 32), (28, 128, 128), (14, 256, 128), (56, 192, 128)]
    for activation, (side, c, n) in itertools.product(("silu", "gelu"), sizes):
        config = form_of((n, side, side, c), (c, 3, 3), activation=activation).config

        tile = (activation, config.consumers, config.rows, config.block_n)
        assert tile not in coefficients().conv2d.spilling


def test_a_single_pixel_takes_the_smallest_tile() -> None:
    config = form_of((1, 1, 1, 8), (8, 1, 1)).config

    assert (config.block_m, config.block_n, config.cluster) == (64, 64, 1)


@pytest.mark.parametrize(
    ("channels", "box"),
    [(8, 16), (16, 16), (24, 32), (32, 32), (40, 64), (64, 64), (96, 32), (320, 64)],
)
def test_boxes_have_few_zeros_after_the_last_channel(channels: int, box: int) -> None:
    assert form_of((64, 56, 56, channels), (96, 3, 3)).channels_per_box == box


@pytest.mark.parametrize(
    ("images", "taps", "stride", "fold"),
    [
        ((128, 224, 224, 8), 7, 2, 2),
        ((128, 224, 224, 8), 7, 1, 1),
        ((128, 112, 112, 32), 3, 2, 2),
        ((128, 112, 112, 64), 3, 2, 1),  # they would not fit into a box
        ((128, 113, 113, 32), 3, 2, 1),  # odd rows
        ((128, 112, 112, 32), 1, 2, 1),  # every other pixel is not needed
    ],
)
def test_pixels_fold_where_stride_and_channels_allow(
    images: tuple[int, ...], taps: int, stride: int, fold: int
) -> None:
    assert form_of(images, (64, taps, taps), stride).fold == fold
    assert form_of(images, (64, taps, taps), stride, can_fold=False).fold == 1


def test_an_output_over_what_is_read_finds_no_launch() -> None:
    images, filters = np.zeros((1, 4, 4, 8), np.float16), np.zeros((8, 3, 3, 8), np.float16)
    views = Views.of(images, filters, np.zeros(8, np.float16))
    window = window_over(views, 1, 1, 1)
    out = Layout.of(_arrays.view(np.zeros((1, 4, 4, 8), np.float16)))
    operands = map(Layout.of, views.named.values())
    operation = Conv2d(out, window, Epilogue(BiasSide.COLUMNS), *operands)

    # The kernel has the output before the bias.
    check_binding(operation, 4, lambda at: (*at[:2], at[3], at[2]))
