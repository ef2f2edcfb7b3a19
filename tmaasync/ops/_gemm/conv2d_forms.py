"""The forms in which a convolution runs, and the cost model that ranks them.

The tensor cores take the same time as in gemm.cu; TMA has its own time for boxes of patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync._tile.window import Window
from tmaasync.ops._gemm.coefficients import Conv2dCoefficients, coefficients
from tmaasync.ops._gemm.config import BLOCK_K_BYTES, Occupancy, TileConfig
from tmaasync.ops._gemm.cost_model import paired_in_many_waves
from tmaasync.ops._gemm.tensor_time import soft_max, tensor_time

_K_BLOCK_DEPTH = BLOCK_K_BYTES // 2  # 16-bit elements


class Conv2dForm(NamedTuple):
    """A form of a convolution.

    Attributes:
        fold: Adjacent pixels of a row that are loaded as one pixel with more channels; 1: none.
        channels_per_box: Channels per box of patches; with a fold, all of a folded pixel.
        config: The tile config.
    """

    fold: int
    channels_per_box: int
    config: TileConfig


def ranked_conv2d_forms(
    images: Sequence[int],
    filters: int,
    window: Window,
    occupancy: Occupancy,
    *,
    can_fold: bool = True,
    epilogue_depth: int = 0,
    activation: str = "none",
) -> list[Conv2dForm]:
    """Return all forms, fastest first.

    Beyond a few waves, narrow boxes of filters are multicast to pairs of CTAs.

    Args:
        images: The shape of the images, [N, H, W, C].
        filters: The number of filters.
        window: The filters' window over the images.
        occupancy: SMs and max active clusters of the device.
        can_fold: Whether adjacent pixels are contiguous in memory.
        epilogue_depth: Cost of a tile's epilogue before the stores, in elements of K.
        activation: The activation; tiles that spill registers with it are excluded.

    >>> from tmaasync._tile.window import window_of
    >>> h200 = Occupancy.estimated(132)
    >>> for channels, stride in ((8, 1), (8, 2), (32, 1), (32, 2), (64, 1), (96, 1)):
    ...     window = window_of(2, (3, 3), stride, 1, 1)
    ...     form, *_ = ranked_conv2d_forms((64, 56, 56, channels), 96, window, h200)
    ...     print(channels, stride, form.fold, form.channels_per_box)
    8 1 1 16
    8 2 2 16
    32 1 1 32
    32 2 2 64
    64 1 1 64
    96 1 1 32
    """
    known = coefficients()
    numbers = known.conv2d
    pixels = images[0] * math.prod(window.outputs(images[1:3]))
    epilogue_depth += numbers.exposed_store_depth
    tensor_cores = replace(known.gemm, multiply_adds=numbers.multiply_adds)

    def time(form: Conv2dForm) -> float:
        fold, box, config = form
        taps = window.folded(images[2], fold).taps if fold > 1 else window.taps
        boxes = math.prod(taps) * -(-images[3] * fold // box)
        depth = -(-boxes * box // _K_BLOCK_DEPTH) * _K_BLOCK_DEPTH
        waves = -(-config.clusters(pixels, filters) // occupancy.sms)
        even = pixels * filters * depth / occupancy.sms
        busy = tensor_time(
            tensor_cores, config, depth, waves, even, on_lines=True, epilogue_depth=epilogue_depth
        )
        box_time = numbers.box_time + config.block_m * numbers.row_time[box]
        return soft_max(busy, waves * depth // box * box_time)

    def paired(form: Conv2dForm) -> Conv2dForm:
        if form.channels_per_box == _K_BLOCK_DEPTH:
            return form
        return form._replace(config=paired_in_many_waves(form.config, pixels, filters, occupancy))

    folds = _folds(images, window) if can_fold else ()
    forms = _legal_forms(images[3], folds, numbers, activation)
    return [paired(form) for form in sorted(forms, key=time)]


def _legal_forms(
    channels: int, folds: Iterable[int], numbers: Conv2dCoefficients, activation: str
) -> Iterator[Conv2dForm]:
    configs = [
        TileConfig(consumers, columns, rows=rows, ping_pong=ping_pong)
        for consumers, rows, columns, ping_pong in numbers.tiles
        if (activation, consumers, rows, columns) not in numbers.spilling
    ]
    pieces = [(1, box) for box in numbers.row_time]
    pieces += ((fold, fold * channels) for fold in folds if fold * channels in numbers.row_time)
    return (Conv2dForm(*piece, config) for piece in pieces for config in configs)


def _folds(images: Sequence[int], window: Window) -> Iterator[int]:
    """Yield the possible folds: common divisors of the row and the stride.

    The taps must cover all folded pixels, or some would be loaded in vain.
    """
    taps, stride = window.taps[1], window.strides[1]
    if window.dilations[1] == 1 and taps >= stride:
        yield from (fold for fold in range(2, stride + 1) if stride % fold == images[2] % fold == 0)


class FoldedConvolution(NamedTuple):
    """A convolution over folded pixels: adjacent pixels of a row become one with more channels.

    This is space-to-depth along the rows, as a view of the same memory. A stride of 2 over pixels
    of 8 channels becomes a stride of 1 over pairs of 16 channels, and 7 taps become 4. TMA then
    loads fewer and wider rows, which bound the time if there are few channels.

    Attributes:
        images: [N, H, W / fold, fold * C].
        filters: [K, R, 1, S * C].
        window: The window, in folded pixels along the rows.
        filter_offset: Offset of the filters' first value in the first folded tap.
    """

    images: ArrayView
    filters: ArrayView
    window: Window
    filter_offset: int

    @classmethod
    def of(
        cls, images: ArrayView, filters: ArrayView, window: Window, fold: int
    ) -> FoldedConvolution:
        """Fold ``fold`` pixels into one; the arrays satisfy `can_fold`."""
        channels = images.shape[3]
        pixel_bytes = channels * images.element.itemsize
        k, r, s, _ = filters.shape
        *outer, _, step = images.strides_bytes
        rows, row_step = filters.strides_bytes[:2]
        return cls(
            images._replace(
                shape=(*images.shape[:2], images.shape[2] // fold, fold * channels),
                strides_bytes=(*outer, fold * pixel_bytes, step),
            ),
            filters._replace(
                shape=(k, r, 1, s * channels), strides_bytes=(rows, row_step, row_step, step)
            ),
            window.folded(images.shape[2], fold),
            window.lower_corner[1] % fold * channels,
        )


def can_fold(images: ArrayView, filters: ArrayView) -> bool:
    """Return whether adjacent pixels, and adjacent filter taps, are contiguous in memory."""
    pixel_bytes = images.shape[3] * images.element.itemsize
    return images.strides_bytes[2] == filters.strides_bytes[2] == pixel_bytes
