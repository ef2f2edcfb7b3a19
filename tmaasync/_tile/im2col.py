"""Tiles of the patch matrix of images, loaded by im2col maps for implicit-GEMM convolutions."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync._hardware import INT32_LIMIT, MAX_IM2COL_PIXELS
from tmaasync._kinds import check_integers
from tmaasync._tile.argument import MapForm, MapTile, view_in_place
from tmaasync._tile.cut import (
    Cut,
    cut_violations,
    equal_part,
    layout_violations,
    per_side_violations,
    sides_of,
)
from tmaasync._tile.window import Padding, PerSide, Window, window_of
from tmaasync.errors import ArgumentError, TensorMapError, Violation
from tmaasync.modes import (
    L2Promotion,
    L2PromotionName,
    OOBFill,
    OOBFillName,
    Swizzle,
    SwizzleName,
)
from tmaasync.tensormap import Im2colSpec

_OFFSET_BITS = {3: 16, 4: 8, 5: 5}
_ARGUMENT_BYTES = 256  # the device's struct: 128 of map, five triples, one number, padding
_TRIPLES = struct.Struct("<12I3iI")


class Im2colStart(NamedTuple):
    """The operands of one im2col load, outermost first; in a kernel they run innermost first."""

    coordinates: tuple[int, ...]
    """Image, the pixel under the first tap, channel."""

    offsets: tuple[int, ...]
    """Pixels from the first tap to the column's, per spatial dimension."""


@dataclass(frozen=True, slots=True, eq=False)
class _Form(MapForm):
    window: Window
    spec: Im2colSpec


class TMATensorTileIm2col(MapTile):
    """An im2col tensor map over images, and the tile of their patch matrix that one call loads.

    Made by `create_tma_tile_im2col`. Pass it to a kernel for a ``const __grid_constant__``
    parameter of the type `cuda_type`. The images stay alive as long as the tile.

    The matrix has a row per output pixel and a column per filter tap and channel (the channels of
    one tap side by side); `matrix_shape` has their number.
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
        """The fields of the tensor map."""
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
        """Rows and columns of the patch matrix: the M and K of the GEMM."""
        *pixels, columns = self.output_shape
        return math.prod(pixels), columns

    @property
    def tiles_per_side(self) -> tuple[int, ...]:
        """Tiles that cover the patch matrix: along its rows, along its columns."""
        pairs = zip(self.matrix_shape, self.tile_shape, strict=True)
        return tuple(-(-extent // side) for extent, side in pairs)

    def load_coordinates(self, row: int, column: int) -> Im2colStart:
        """Return where a load of the tile at this row and column of the patch matrix starts.

        What tilelang's ``c2d_im2col`` computes from its steps is ``load_coordinates(nhw_step *
        tile_shape[0], c_step * tile_shape[1])``, here for any stride, dilation and padding. Of a
        tile of several boxes it is the first one's. After the last tap the channel is beyond the
        images', after the last row the image, so that all is fill.

        Raises:
            ArgumentError: The row or column is negative, or the column no multiple of a box's.

        >>> import numpy as np
        >>> images = np.zeros((8, 28, 28, 64), np.float16)
        >>> tile = create_tma_tile_im2col(
        ...     images, (128, 64), filter_shape=(3, 3), stride=2, padding=1, swizzle=Swizzle.B128
        ... )
        >>> tile.load_coordinates(15, 4 * 64)
        Im2colStart(coordinates=(0, 1, 1, 0), offsets=(1, 1))
        """
        check_integers(row=row, column=column)
        chunk = self.box_shape[1]
        if row < 0 or column < 0 or column % chunk:
            raise ArgumentError.broken(
                "row and column",
                f"{row} and {column}",
                f"they must be 0 or more, and the column a multiple of the {chunk} channels "
                "of a box",
                "Pass where a tile starts",
                verb="are",
            )
        window = self._form.window
        tap, channel = divmod(column, self.channels)
        outer, *offsets = _digits(tap, window.taps)
        image, *pixel = _digits(row, self.output_shape[1:-1])
        return Im2colStart(
            (image, *window.first_pixel(pixel), self.channels if outer else channel),
            tuple(digit * step for digit, step in zip(offsets, window.dilations, strict=True)),
        )

    def rebind(self, array: object) -> TMATensorTileIm2col:
        """Return the same tile over other images of the same shape, strides, type and device.

        Raises:
            TensorMapError: The array differs, or its address is no multiple of 16.
        """
        view = view_in_place(array, self._owner, self.element)
        if view[1:5] != self._form.view[1:5]:
            remedy = "Make a tile of its own for these images with create_tma_tile_im2col"
            rule = f"the tile was made for {self._form.view[1:3]} {_arrays.where(self.device)}"
            what = f"of shape and strides {view[1:3]} {_arrays.where(view.device)}"
            raise TensorMapError.broken("array", what, rule, remedy)
        replace(self._form.spec, address=view.address).check()
        return TMATensorTileIm2col(self._form, view.address, view.owner, view.lease)


def create_tma_tile_im2col(  # noqa: PLR0913 - one per field of the tensor map
    array: object,
    tile_shape: Sequence[int],
    *,
    filter_shape: Sequence[int],
    stride: PerSide = 1,
    dilation: PerSide = 1,
    padding: Padding = 0,
    lower_corner: Sequence[int] | None = None,
    upper_corner: Sequence[int] | None = None,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    dtype: object = None,
) -> TMATensorTileIm2col:
    """Describe a tile of the patch matrix of images (im2col), for convolution as implicit GEMM.

    Rows are output pixels, image by image; columns are filter taps, then channels. In shared memory
    the tile is ``[chunks][rows][chunk]``, as for any K-major matrix.

    Args:
        array: Images of shape (N, [D, [H,]] W, C), the channels contiguous, the other strides
            multiples of 16 bytes.
        tile_shape: Rows and columns of the patch matrix.
        filter_shape: Taps along each spatial dimension, outermost first.
        stride: Pixels from one output to the next, 1 to 8; one number, or one per dimension.
        dilation: Pixels from one tap to the next; one number, or one per dimension.
        padding: Pixels of fill around the images: one number, one per dimension, or a pair (before,
            after) per dimension.
        lower_corner: In place of ``padding``: the first pixel under the first tap, relative to the
            first pixel of the image, per dimension: ``-padding`` before.
        upper_corner: The last pixel under the first tap, relative to the last pixel of the image:
            ``padding`` after, minus ``(taps - 1) * dilation``.
        swizzle: As in `create_tma_tile`; a box has as many channels as its span holds.
        box_shape: Pixels (at most 1024) and channels of one instruction, in place of that rule.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules of the hardware; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    Source: cuda.h on ``cuTensorMapEncodeIm2col``; PTX ISA, "im2col mode".

    >>> import numpy as np
    >>> images = np.zeros((8, 28, 28, 64), np.float16)
    >>> tile = create_tma_tile_im2col(
    ...     images, (128, 64), filter_shape=(3, 3), padding=1, swizzle="128B"
    ... )
    >>> tile.matrix_shape, tile.box_shape
    ((6272, 576), (128, 64))
    """
    view = _arrays.view(array, dtype=dtype)
    TensorMapError.raise_for(_rank_violations(view))
    spatial = view.ndim - 2
    sides, mode = sides_of("tile_shape", tile_shape), Swizzle.of(swizzle, "swizzle")
    TensorMapError.raise_for(per_side_violations(2, "tile_shape", sides))
    taps = sides_of("filter_shape", filter_shape)
    window = window_of(spatial, taps, stride, dilation, padding, lower_corner, upper_corner)
    box = _default_box(sides, view.element.itemsize, mode) if box_shape is None else box_shape
    cut = Cut(view.element, sides, sides_of("box_shape", box), (1, 1), mode)
    TensorMapError.raise_for(per_side_violations(2, "box_shape", cut.box_shape))
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
        swizzle=mode,
        l2_promotion=L2Promotion.of(l2_promotion, "l2_promotion"),
        oob_fill=OOBFill.of(oob_fill, "oob_fill"),
    )
    own = _im2col_violations(view, cut, window)
    TensorMapError.raise_for(
        [*layout_violations(view), *spec.violations(), *cut_violations(cut), *own]
    )
    descriptor = spec.encode() if view.device is None else _driver.encode(spec, view.device)
    form = _Form(cut, view._replace(owner=None, lease=None), descriptor, window, spec)
    return TMATensorTileIm2col(form, view.address, view.owner, view.lease)


def _default_box(sides: tuple[int, ...], itemsize: int, swizzle: Swizzle) -> tuple[int, int]:
    """Return the box of a tile without ``box_shape``: as many channels as the span holds."""
    rows, columns = sides
    channels = columns if swizzle is Swizzle.NONE else swizzle.span_bytes // itemsize
    return equal_part(rows, MAX_IM2COL_PIXELS), equal_part(min(channels, columns))


def _digits(number: int, extents: Sequence[int]) -> list[int]:
    """Return a number's digits in the mixed base of the extents, its overflow first."""
    digits: list[int] = []
    for extent in reversed(extents):
        number, digit = divmod(number, extent)
        digits.insert(0, digit)
    return [number, *digits]


def _innermost_first(values: Sequence[int], unused: int) -> tuple[int, ...]:
    return (*reversed(values), *(unused for _ in range(3 - len(values))))


# --- what a tile of patches must be -----------------------------------------------------------


def _rank_violations(view: ArrayView) -> list[Violation]:
    if view.ndim in _OFFSET_BITS:
        return []
    remedy = "Reshape it, with images first and channels last"
    rule = "images have 3 to 5 dimensions: (N, [D, [H,]] W, C)"
    return [Violation("array", f"of {view.ndim} dimensions", rule, remedy)]


def _im2col_violations(view: ArrayView, cut: Cut, window: Window) -> Iterator[Violation]:
    limit = 1 << _OFFSET_BITS[view.ndim]
    sides = zip(window.taps, window.dilations, window.reaches, strict=True)
    for dim, (taps, dilation, reach) in enumerate(sides):
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
    if rows + cut.tile_shape[0] > INT32_LIMIT:
        yield Violation(
            "array.shape",
            view.shape,
            f"the patch matrix would have {rows} rows; coordinates have 31 bits",
            "Split the batch",
        )
