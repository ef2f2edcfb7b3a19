"""Tiles of the matrix that a convolution multiplies with its filters, straight from the images."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import Im2colSpec
from tmaasync.tile.argument import MapForm, MapTile
from tmaasync.tile.cut import (
    Cut,
    cut_violations,
    equal_part,
    layout_violations,
    per_side_violations,
    raise_if,
)

__all__ = ["TMATensorTileIm2col", "create_tma_tile_im2col"]

_MAX_PIXELS = 1024
_MAX_ROWS = 2**31
_OFFSET_BITS = {3: 16, 4: 8, 5: 5}
_ARGUMENT_BYTES = 256  # the device's struct: 128 of map, five triples, one number, padding
_TRIPLES = struct.Struct("<12I3iI")

_PerSide = int | Sequence[int]
_Padding = int | Sequence[int | Sequence[int]]


@dataclass(frozen=True, slots=True)
class _Window:
    """What a filter sees, one number per spatial dimension, outermost first."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    lower_corner: tuple[int, ...]
    upper_corner: tuple[int, ...]

    def outputs(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Positions of the filter along each dimension."""
        corners = zip(extents, self.lower_corner, self.upper_corner, self.strides, strict=True)
        return tuple(-(-(extent + up - low) // stride) for extent, low, up, stride in corners)


@dataclass(frozen=True, slots=True, eq=False)
class _Form(MapForm):
    window: _Window
    spec: Im2colSpec


class TMATensorTileIm2col(MapTile):
    """An im2col tensor map over images, and the tile of their patch matrix that one call loads.

    Made by `create_tma_tile_im2col`. Pass it to a kernel for a ``const __grid_constant__``
    parameter of the type `cuda_type`. The images stay alive as long as the tile.

    The matrix has a row per output pixel and a column per filter tap and channel (the channels of
    one tap side by side); `matrix_shape` tells how many.
    """

    __slots__ = ()

    _form: _Form

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._form.view.shape))
        sides = "x".join(map(str, self.tile_shape))
        taps = "x".join(map(str, self.filter_shape))
        return (
            f"<TMATensorTileIm2col {sides} of {self.element} [{shape}] under {taps} filters at "
            f"{self._address:#x}, {self._form.cut.swizzle}, {self.tile_bytes} bytes>"
        )

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter: the tensor map, then what divides rows and columns."""
        window = self._form.window
        outermost_first = (
            self.output_shape[1:-1],
            window.taps,
            window.strides,
            window.dilations,
        )
        numbers = [number for values in outermost_first for number in _innermost_first(values, 1)]
        corner = _innermost_first(window.lower_corner, 0)
        data = self.descriptor + _TRIPLES.pack(*numbers, *corner, self.channels)
        return data.ljust(_ARGUMENT_BYTES, b"\0")

    @property
    def spec(self) -> Im2colSpec:
        """What the 128 bytes say."""
        return replace(self._form.spec, address=self._address)

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++; ``Kernel(types={"ATile": tile})`` gives it a name."""
        rest = self._form.cut.cuda_type().partition("<")[2]
        kind, _, sides = rest.partition(", ")
        return f"tmaasync::TMATensorTileIm2col<{kind}, {self._form.view.ndim}, {sides}"

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Taps along each spatial dimension, outermost first."""
        return self._form.window.taps

    @property
    def channels(self) -> int:
        """Columns of one tap: the images' channels, rounded up to whole boxes."""
        chunk = self.box_shape[1]
        return -(-self._form.view.shape[-1] // chunk) * chunk

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Images, then output pixels along each spatial dimension, then taps times channels."""
        images, *extents, _ = self._form.view.shape
        columns = math.prod(self.filter_shape) * self.channels
        return images, *self._form.window.outputs(extents), columns

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of the patch matrix: the M and K of the product."""
        *pixels, columns = self.output_shape
        return math.prod(pixels), columns

    @property
    def tiles_per_side(self) -> tuple[int, ...]:
        """How many tiles cover the patch matrix: along its rows, along its columns."""
        pairs = zip(self.matrix_shape, self.tile_shape, strict=True)
        return tuple(-(-extent // side) for extent, side in pairs)

    def rebind(self, array: object) -> TMATensorTileIm2col:
        """The same tile over other images of the same shape, strides, type and device.

        Raises:
            TensorMapError: The array differs, or its address is no multiple of 16.
        """
        view = _arrays.view(array, dtype=self.element)
        if view[1:5] != self._form.view[1:5]:
            remedy = "Make a tile of its own for these images with create_tma_tile_im2col"
            rule = f"the tile was made for {self._form.view[1:3]} on device {self.device}"
            what = f"of shape and strides {view[1:3]} on device {view.device}"
            raise TensorMapError((Violation("array", what, rule, remedy),))
        replace(self._form.spec, address=view.address).check()
        return TMATensorTileIm2col(self._form, view.address, view.owner, view.lease)


def create_tma_tile_im2col(  # noqa: PLR0913 - one per field of the tensor map
    array: object,
    tile_shape: Sequence[int],
    *,
    filter_shape: Sequence[int],
    stride: _PerSide = 1,
    dilation: _PerSide = 1,
    padding: _Padding = 0,
    lower_corner: Sequence[int] | None = None,
    upper_corner: Sequence[int] | None = None,
    swizzle: Swizzle = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion = L2Promotion.B256,
    oob_fill: OOBFill = OOBFill.ZERO,
    dtype: object = None,
) -> TMATensorTileIm2col:
    """Describe a tile of the patch matrix of images, for a convolution as a matrix product.

    Rows are output pixels, image by image; columns are filter taps, then channels. In shared memory
    the tile is ``[chunks][rows][chunk]``, as that of any K-major matrix.

    Args:
        array: Images of shape (N, [D, [H,]] W, C), the channels contiguous, the other strides
            multiples of 16 bytes.
        tile_shape: Rows and columns of the patch matrix.
        filter_shape: Taps along each spatial dimension, outermost first.
        stride: Pixels from one output to the next, 1 to 8; one number, or one per dimension.
        dilation: Pixels from one tap to the next; one number, or one per dimension.
        padding: Pixels of fill around the images: one number, one per dimension, or a pair (before,
            after) per dimension.
        lower_corner: In place of ``padding``: where the first tap is first put, relative to the
            first pixel, per dimension. ``-padding`` before.
        upper_corner: Where it is last put, relative to the last pixel: ``padding`` after, less
            ``(taps - 1) * dilation``.
        swizzle: As in `create_tma_tile`; a box has as many channels as its span holds.
        box_shape: Pixels (at most 1024) and channels of one instruction, if not by that rule.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules of the hardware; every one is listed with a remedy.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> images = np.zeros((8, 28, 28, 64), np.float16)
    >>> tile = create_tma_tile_im2col(
    ...     images, (128, 64), filter_shape=(3, 3), padding=1, swizzle=Swizzle.B128
    ... )
    >>> tile.matrix_shape, tile.box_shape
    ((6272, 576), (128, 64))
    """
    view = _arrays.view(array, dtype=dtype)
    raise_if(_rank_violations(view))
    spatial = view.ndim - 2
    raise_if(list(per_side_violations(2, "tile_shape", tuple(tile_shape))))
    window = _window(
        spatial, tuple(filter_shape), stride, dilation, padding, lower_corner, upper_corner
    )
    rows, columns = tile_shape
    channels = columns if swizzle is Swizzle.NONE else swizzle.span_bytes // view.element.itemsize
    box = (equal_part(rows, _MAX_PIXELS), equal_part(min(channels, columns)))
    cut = Cut(view.element, (rows, columns), tuple(box_shape or box), (1, 1), swizzle)
    raise_if(list(per_side_violations(2, "box_shape", cut.box_shape)))
    spec = Im2colSpec(
        address=view.address,
        dtype=view.element.data_type,
        shape=view.shape,
        strides_bytes=view.strides_bytes[:-1],
        lower_corner=window.lower_corner,
        upper_corner=window.upper_corner,
        pixels_per_column=cut.box_shape[0],
        channels_per_pixel=cut.box_shape[1],
        element_strides=(1, *window.strides, 1),
        swizzle=swizzle,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
    )
    own = _im2col_violations(view, cut, window)
    raise_if([*layout_violations(view), *spec.violations(), *cut_violations(cut), *own])
    descriptor = spec.encode() if view.device is None else _driver.encode(spec)
    form = _Form(cut, view._replace(owner=None, lease=None), descriptor, window, spec)
    return TMATensorTileIm2col(form, view.address, view.owner, view.lease)


def _innermost_first(values: Sequence[int], unused: int) -> tuple[int, ...]:
    return (*reversed(values), *(unused for _ in range(3 - len(values))))


# --- the window -------------------------------------------------------------------------------


def _window(
    spatial: int,
    taps: tuple[int, ...],
    stride: _PerSide,
    dilation: _PerSide,
    padding: _Padding,
    lower: Sequence[int] | None,
    upper: Sequence[int] | None,
) -> _Window:
    strides, dilations = _per_dimension(stride, spatial), _per_dimension(dilation, spatial)
    pairs = _padding_pairs(padding, spatial)
    per_side = {"filter_shape": taps, "stride": strides, "dilation": dilations}
    found = [
        violation
        for argument, values in per_side.items()
        for violation in _spatial_violations(spatial, argument, values)
    ]
    raise_if([*found, *_corner_violations(spatial, padding, pairs, lower, upper)])
    if lower is not None and upper is not None:
        return _Window(taps, strides, dilations, tuple(lower), tuple(upper))
    reach = [(tap - 1) * step for tap, step in zip(taps, dilations, strict=True)]
    lower = tuple(-before for before, _ in pairs)
    upper = tuple(after - less for (_, after), less in zip(pairs, reach, strict=True))
    return _Window(taps, strides, dilations, lower, upper)


def _per_dimension(value: _PerSide, spatial: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,) * spatial


def _padding_pairs(padding: _Padding, spatial: int) -> tuple[tuple[int, int], ...]:
    sides: Sequence[Any] = padding if isinstance(padding, Sequence) else (padding,) * spatial
    pairs = (tuple(side) if isinstance(side, Sequence) else (side, side) for side in sides)
    return tuple(pairs)


# --- what a tile of patches must be -----------------------------------------------------------


def _rank_violations(view: ArrayView) -> list[Violation]:
    if view.ndim in _OFFSET_BITS:
        return []
    remedy = "Reshape it, with images first and channels last"
    rule = "images have 3 to 5 dimensions: (N, [D, [H,]] W, C)"
    return [Violation("array", f"of {view.ndim} dimensions", rule, remedy)]


def _spatial_violations(
    spatial: int, argument: str, values: tuple[Any, ...]
) -> Iterator[Violation]:
    if len(values) != spatial:
        yield Violation(
            argument,
            values,
            f"the images have {spatial} spatial dimensions and need one number for each",
            f"Pass {spatial} numbers, outermost first",
        )
        return
    yield from per_side_violations(spatial, argument, values)


def _corner_violations(
    spatial: int,
    padding: _Padding,
    pairs: Sequence[Sequence[int]],
    lower: Sequence[int] | None,
    upper: Sequence[int] | None,
) -> Iterator[Violation]:
    if (lower is None) != (upper is None):
        yield Violation(
            "lower_corner and upper_corner",
            (lower, upper),
            "the bounding box has both",
            "Pass both, or padding",
        )
    if len(pairs) != spatial or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        yield Violation(
            "padding",
            padding,
            f"it is a number of pixels, 0 or more, for each of {spatial} spatial dimensions, or a "
            "pair (before, after)",
            "Crop with lower_corner and upper_corner",
        )
    for argument, corner in (("lower_corner", lower), ("upper_corner", upper)):
        if corner is not None and len(corner) != spatial:
            yield Violation(
                argument,
                corner,
                f"the images have {spatial} spatial dimensions and need one number for each",
                f"Pass {spatial} numbers, outermost first",
            )


def _im2col_violations(view: ArrayView, cut: Cut, window: _Window) -> Iterator[Violation]:
    limit = 1 << _OFFSET_BITS[view.ndim]
    for dim, (taps, dilation) in enumerate(zip(window.taps, window.dilations, strict=True)):
        reach = (taps - 1) * dilation
        if reach >= limit:
            yield Violation(
                f"filter_shape[{dim}]",
                taps,
                f"with dilation {dilation} its last tap is {reach} pixels from the first, and "
                f"images of {view.ndim} dimensions allow {limit - 1}",
                "Use a smaller filter or dilation, or split the filter",
            )
    if cut.tile_shape[1] % cut.box_shape[1]:
        yield Violation(
            "tile_shape[1]",
            cut.tile_shape[1],
            f"a box has {cut.box_shape[1]} channels, and tiles are whole boxes of them",
            f"Use a multiple of {cut.box_shape[1]}",
        )
    rows = view.shape[0] * math.prod(max(0, side) for side in window.outputs(view.shape[1:-1]))
    if rows + cut.tile_shape[0] > _MAX_ROWS:
        yield Violation(
            "array.shape",
            view.shape,
            f"the patch matrix would have {rows} rows; coordinates have 31 bits",
            "Split the batch",
        )
