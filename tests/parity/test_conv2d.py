"""Convolutions, bit by bit, on either back end; every array lies among NaNs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity.random_convolutions import Problem, dtype_of, problem
from parity.tile_configs import fitted

from tmaasync import _arrays, ops
from tmaasync._tile.window import window_of
from tmaasync.ops import _conv2d
from tmaasync.ops._call_cache import forget
from tmaasync.ops._gemm.coefficients import coefficients
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.conv2d_forms import Conv2dForm, FoldedConvolution, ranked_conv2d_forms
from tmaasync.ops._gemm.conv2d_tiles import conv2d_kernel, conv2d_tiles
from tmaasync.ops._gemm.epilogue import BiasSide, Epilogue, activation_of

EMULATED, ON_THE_CHIP = range(10), range(600)
Array = np.ndarray[Any, Any]


def is_emulated(backend: Any) -> bool:
    return backend.module is np


def among_nans(backend: Any, values: Array, *, channels: int = 8) -> tuple[Any, Any]:
    """Return an array of NaNs with the values in its middle, and the view of its middle."""
    *outer, last = values.shape
    whole = np.full((*(side + 3 for side in outer), last + channels + 8), np.nan, values.dtype)
    middle = (*(slice(1, 1 + side) for side in outer), slice(channels, channels + last))
    whole[middle] = values
    placed = backend.array(whole)
    return placed, placed[middle]


def blank_output(backend: Any, shape: tuple[int, ...], name: str) -> tuple[Any, Any]:
    """NaNs, and a view of them whose pixels lie equally far apart."""
    n, p, q, k = shape
    whole = backend.array(np.full((n + 2, p, q, k + 32 - k % 8), np.nan, dtype_of(name)))
    return whole, whole[1 : 1 + n, :, :, 8 : 8 + k]


def assert_nothing_outside(backend: Any, whole: Any, view: Any) -> None:
    view[...] = backend.array(np.full(view.shape, np.nan, backend.host(view).dtype))
    assert np.isnan(backend.host(whole).astype(np.float32)).all()


def assert_same(got: Any, wanted: Array, what: object) -> None:
    assert got.dtype == wanted.dtype, what
    assert np.array_equal(got.astype(np.float64), wanted.astype(np.float64)), what


@pytest.mark.slow
def test_random_convolutions_are_exact(backend: Any) -> None:
    emulated = is_emulated(backend)
    for number in EMULATED if emulated else ON_THE_CHIP:
        one = problem(number, most=1_500_000 if emulated else 40_000_000)
        images, filters, bias = one.operands()
        _, images_on = among_nans(backend, images)
        _, filters_on = among_nans(backend, filters, channels=16)
        bias_on = None if bias is None else backend.array(bias)
        options: dict[str, Any] = {"bias": bias_on, "activation": one.activation, **one.window}
        wanted = one.result()

        if number % 2:
            whole, out = blank_output(backend, wanted.shape, one.out)
            assert ops.conv2d(images_on, filters_on, out=out, **options) is out
            assert_same(backend.host(out), wanted, one)
            assert_nothing_outside(backend, whole, out)
        else:
            got = ops.conv2d(images_on, filters_on, dtype=one.out, **options)
            assert_same(backend.host(got), wanted, one)


CONFIGS = [
    TileConfig(1, 160, rows=128),
    TileConfig(3, 64, 2),
    TileConfig(2, 64, rows=128, ping_pong=True),
]
CHOSEN = [
    TileConfig(consumers, n, cluster, rows=rows, ping_pong=ping_pong)
    for consumers, rows, n, ping_pong in coefficients().conv2d.tiles
    for cluster in (1, 2)
]


@pytest.mark.slow
def test_every_tile_config_has_more_tiles_than_there_are_ctas(backend: Any) -> None:
    """On the emulator, where each is a build of seconds, three forms."""
    for config in CONFIGS if is_emulated(backend) else [*CONFIGS, *CHOSEN]:
        run_persistent(backend, config)


def run_persistent(backend: Any, config: TileConfig) -> None:
    side = 21 if is_emulated(backend) else 47
    one = Problem(
        *(7, (2, side, side + 2, 72), (config.block_n + 24, 2, 3), (1, 1), (1, 2)),
        *(((1, 0), (2, 1)), "bfloat16", "float32", "relu", "bfloat16"),
    )
    images, filters, bias = (backend.array(array) for array in one.operands())
    wanted = one.result()
    whole, out = blank_output(backend, wanted.shape, one.out)

    launch(images, filters, bias, out, one, config, clusters=2)

    assert_same(backend.host(out), wanted, config)
    assert_nothing_outside(backend, whole, out)


def launch(
    images: Any, filters: Any, bias: Any, out: Any, one: Problem, config: TileConfig, clusters: int
) -> None:
    """Run the kernel in a given tile config, on a given number of clusters."""
    config = fitted(config)
    k, *taps = one.filters
    window = window_of(2, tuple(taps), **one.window)
    pixels = _arrays.view(out)
    m = int(np.prod(pixels.shape[:3]))
    rows = pixels._replace(shape=(m, k), strides_bytes=pixels.strides_bytes[2:])
    views = _arrays.view(images), _arrays.view(filters)
    box = next(box for box in (16, 32, 64) if box >= min(64, one.images[3]))
    tiles = conv2d_tiles(*views, rows, window, config, box)
    kernel = conv2d_kernel(
        [tile.cuda_type for tile in tiles],
        "float",
        Epilogue(BiasSide.COLUMNS, activation_of(one.activation)),
        config,
    )
    kernel(
        clusters * config.cluster,
        config.threads,
        (*tiles, bias, m, k, tiles[0].matrix_shape[1]),
        cluster=config.cluster if config.cluster > 1 else None,
    )


@pytest.mark.on_the_cpu(2)
@pytest.mark.parametrize("channels", [8, 32, 40])
def test_chunks_of_every_width_come_through_multicast_too(backend: Any, channels: int) -> None:
    one = Problem(
        *(5, (1, 13, 14, channels), (80, 3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))),
        *("bfloat16", "float32", "relu", "bfloat16"),
    )
    images, filters, bias = (backend.array(array) for array in one.operands())
    wanted = one.result()
    whole, out = blank_output(backend, wanted.shape, one.out)

    launch(images, filters, bias, out, one, TileConfig(1, 64, 2), clusters=1)

    assert_same(backend.host(out), wanted, channels)
    assert_nothing_outside(backend, whole, out)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 1)
@pytest.mark.parametrize(
    ("fold", "one"),
    [
        (2, Problem(1, (2, 9, 12, 8), (24, 7, 7), (2, 2), (1, 1), ((3, 3), (3, 3)))),
        (4, Problem(2, (1, 7, 16, 8), (40, 2, 5), (1, 4), (2, 1), ((1, 0), (5, 2)))),
    ],
)
def test_neighbouring_pixels_of_few_channels_are_folded(
    backend: Any, fold: int, one: Problem
) -> None:
    images, filters, _ = (
        None if array is None else backend.array(array) for array in one.operands()
    )
    views = _arrays.view(images), _arrays.view(filters)
    window = window_of(2, one.filters[1:], **one.window)
    occupancy = Occupancy.estimated(132)
    form, *_ = ranked_conv2d_forms(one.images, one.filters[0], window, occupancy)
    assert (form.fold, form.channels_per_box) == (fold, fold * 8)
    folded = FoldedConvolution.of(*views, window, fold)
    assert folded.images.shape[3] == fold * 8
    assert folded.window.outputs(folded.images.shape[1:3]) == one.outputs

    got = ops.conv2d(images, filters, **one.window)

    assert_same(backend.host(got), one.result(), one)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 2)
@pytest.mark.parametrize("box", [16, 32, 64])
def test_every_box_and_fold_gives_the_same(
    backend: Any, box: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The box of folded pixels has all their channels, whatever boxes other convolutions take."""
    one = Problem(4, (1, 9, 16, 8), (24, 5, 5), (2, 2), (1, 1), ((2, 2), (2, 2)))
    images, filters, _ = (
        None if array is None else backend.array(array) for array in one.operands()
    )

    def with_this_box(*arguments: Any, **options: Any) -> list[Conv2dForm]:
        ranked = ranked_conv2d_forms(*arguments, **options)
        return [form for form in ranked if form.channels_per_box == box]

    monkeypatch.setattr(_conv2d, "ranked_conv2d_forms", with_this_box)
    forget()

    got = ops.conv2d(images, filters, **one.window)

    forget()
    assert_same(backend.host(got), one.result(), one)


SMALL = Problem(3, (2, 9, 10, 16), (24, 3, 3), (1, 2), (1, 1), ((1, 1), (0, 2)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "layout",
    ["channels first", "off a sector", "every other pixel", "images reversed", "one image for all"],
)
def test_operands_that_tma_cannot_read_are_copied(backend: Any, layout: str) -> None:
    images, filters, _ = SMALL.operands()
    wanted = SMALL.result()
    if layout == "channels first":
        placed = [
            backend.array(np.ascontiguousarray(array.transpose(0, 3, 1, 2))).transpose(0, 2, 3, 1)
            for array in (images, filters)
        ]
    elif layout == "off a sector":
        placed = [among_nans(backend, array, channels=3)[1] for array in (images, filters)]
    elif layout == "every other pixel":
        placed = [backend.array(np.repeat(array, 2, 2))[:, :, ::2] for array in (images, filters)]
    elif layout == "images reversed":
        placed = [backend.array(images[:, ::-1].copy())[:, ::-1], backend.array(filters)]
    else:
        first = backend.array(images[:1])
        placed = [backend.module.broadcast_to(first, images.shape), backend.array(filters)]
        wanted = np.broadcast_to(wanted[:1], wanted.shape)

    got = ops.conv2d(*placed, **SMALL.window)

    assert_same(backend.host(got), wanted, layout)


def test_an_output_that_tma_cannot_write_is_written_all_the_same(backend: Any) -> None:
    images, filters, _ = SMALL.operands()
    wanted = SMALL.result()
    n, p, q, k = wanted.shape
    blank = np.full((n, p + 2, q + 1, k + 16), np.nan, wanted.dtype)
    for place in (
        (slice(None), slice(1, 1 + p), slice(q), slice(8, 8 + k)),  # rows of pixels apart
        (slice(None), slice(p), slice(q), slice(3, 3 + k)),  # off a sector
    ):
        whole = backend.array(blank)

        ops.conv2d(backend.array(images), backend.array(filters), out=whole[place], **SMALL.window)

        assert_same(backend.host(whole)[place], wanted, place)
        assert_nothing_outside(backend, whole, whole[place])


def test_input_and_output_may_be_channels_of_the_same_pixels(backend: Any) -> None:
    images, filters, _ = SMALL.operands()
    one = Problem(3, SMALL.images, SMALL.filters, (1, 1), (1, 1), ((1, 1), (1, 1)))
    whole = backend.array(np.full((*one.images[:3], 64), np.nan, images.dtype))
    whole[..., :16] = backend.array(images)

    ops.conv2d(whole[..., :16], backend.array(filters), padding=1, out=whole[..., 24:48])

    assert_same(backend.host(whole[..., 24:48]), one.result(), one)
    assert_same(backend.host(whole[..., :16]), images, one)
    assert np.isnan(backend.host(whole[..., 16:24]).astype(np.float32)).all()
    assert np.isnan(backend.host(whole[..., 48:]).astype(np.float32)).all()


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_activations_agree_with_matmul(backend: Any, activation: str) -> None:
    one = replace(problem(1, most=200_000), activation=activation)
    images, filters, bias = (backend.array(array) for array in one.operands())

    got = ops.conv2d(images, filters, bias=bias, activation=activation, dtype=one.out, **one.window)

    assert np.allclose(backend.host(got), one.result(), rtol=1e-5, atol=1e-5)


def test_relu_hands_nan_on(backend: Any) -> None:
    images, filters, bias = (
        backend.array(values.astype(dtype_of("bfloat16")))
        for values in (np.zeros((1, 3, 3, 8)), np.ones((8, 1, 1, 8)), np.zeros(8))
    )
    images[0, 1, 1, 5] = np.nan
    images[0, 2, 2] = -1

    got = backend.host(ops.conv2d(images, filters, bias=bias, activation="relu"))

    wanted = np.zeros((3, 3), np.float32)
    wanted[1, 1] = np.nan
    assert np.array_equal(got[0, :, :, 0].astype(np.float32), wanted, equal_nan=True)


def test_no_images_and_no_filters_give_nothing(backend: Any) -> None:
    images, filters = np.zeros((0, 5, 5, 8), np.float16), np.zeros((8, 3, 3, 8), np.float16)

    nothing = ops.conv2d(backend.array(images), backend.array(filters))
    empty = ops.conv2d(backend.array(filters), backend.array(filters[:0]))

    assert nothing.shape == (0, 3, 3, 8)
    assert empty.shape == (8, 1, 1, 0)
