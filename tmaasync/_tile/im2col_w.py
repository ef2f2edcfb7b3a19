"""Tiles of pixels along the width of images, loaded by wide im2col maps of sm_100a."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync._hardware import WIDE_PIXELS
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
from tmaasync._tile.form import encoded
from tmaasync._tile.packed import extents, view_and_element
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import (
    L2Promotion,
    L2PromotionName,
    OOBFill,
    OOBFillName,
    Swizzle,
    SwizzleName,
)
from tmaasync.tensormap import Im2colSpec

_MOST_HALO = {"w": 511, "w128": 31}
_HALOS = {"w": 1, "w128": 4}


@dataclass(frozen=True, slots=True, eq=False)
class _Form(MapForm):
    halo: int
    spec: Im2colSpec


class TMATensorTileIm2colW(MapTile):
    """A wide im2col map over images, and the tile of pixels along their width that one call loads.

    Made by `create_tma_tile_im2col_w`. Pass it to a kernel for a ``const __grid_constant__``
    parameter of the type `cuda_type`. The images stay alive as long as the tile.
    """

    __slots__ = ()

    _form: _Form

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._form.spec.shape))
        sides = "x".join(map(str, self.tile_shape))
        return (
            f"<TMATensorTileIm2colW {sides} of {self.element} [{shape}] at {self._address:#x}, "
            f"{self._form.cut.swizzle}, {self.tile_bytes} bytes>"
        )

    @property
    def spec(self) -> Im2colSpec:
        """The fields of the tensor map."""
        return replace(self._form.spec, address=self._address)

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++; ``Kernel(types={"ATile": tile})`` gives it a name."""
        kind, _, sides = self._form.cut.cuda_type().partition("<")[2].partition(", ")
        spec = self._form.spec
        mode = f"{str(spec.wide == 'w128').lower()}, {self._form.halo}"
        return f"tmaasync::TMATensorTileIm2colW<{kind}, {spec.rank}, {mode}, {sides}"

    def rebind(self, array: object) -> TMATensorTileIm2colW:
        """Return the same tile over other images of the same shape, strides, type and device.

        Raises:
            TensorMapError: The array differs, or its address is no multiple of 16.
        """
        made = self._form.view
        view = view_in_place(array, self._owner, made.element)
        if view[1:5] != made[1:5]:
            remedy = "Make a tile of its own for these images with create_tma_tile_im2col_w"
            what = f"of shape and strides {view[1:3]} {_arrays.where(view.device)}"
            rule = f"the tile was made for {made[1:3]} {_arrays.where(self.device)}"
            raise TensorMapError.broken("array", what, rule, remedy)
        replace(self._form.spec, address=view.address).check()
        return TMATensorTileIm2colW(self._form, view.address, view.owner, view.lease)


def create_tma_tile_im2col_w(  # noqa: PLR0913 - one per field of the tensor map
    array: object,
    tile_shape: Sequence[int],
    *,
    lower_corner: int = 0,
    upper_corner: int = 0,
    halo: int = 0,
    mode: str = "w",
    stride: int = 1,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    dtype: object = None,
    arch: str = "sm_100a",
) -> TMATensorTileIm2colW:
    """Describe a tile of pixels along the width of images, with halos (``im2col::w``).

    In shared memory the tile is ``[chunks][pixels and halos][chunk]``, as for any K-major matrix.
    A load begins at a pixel and goes on along the width; after the upper corner it goes on at the
    lower corner of the next image. Emulated, and not run on a chip: the PTX ISA gives the order of
    halos in figures alone.

    Args:
        array: Images of shape (N, [D, [H,]] W, C), the channels contiguous, the other strides
            multiples of 16 bytes.
        tile_shape: Pixels, without halos, and channels. Mode ``"w"`` takes at most 1024 pixels,
            ``"w128"`` takes 128.
        lower_corner: The first pixel of a row, relative to the image's first pixel, in [-2**15,
            2**15).
        upper_corner: The last pixel of a row, relative to the image's last pixel.
        halo: Pixels that follow the last pixel, at most 511; in mode ``"w128"`` every 32nd, at most
            31.
        mode: ``"w"``, or ``"w128"`` for ``im2col::w::128``.
        stride: Pixels from one to the next along the width, 1 to 8.
        swizzle: As in `create_tma_tile`; a box has as many channels as its span holds.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        dtype: As in `create_tma_tile`.
        arch: ``"sm_100a"`` or ``"sm_103a"``.

    Raises:
        TensorMapError: The tile breaks rules of the hardware; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    Source: cuda.h on ``cuTensorMapEncodeIm2colWide``; PTX ISA, "im2col::w and im2col::w::128
    modes".

    >>> import numpy as np
    >>> images = np.zeros((8, 28, 28, 64), np.float16)
    >>> tile = create_tma_tile_im2col_w(images, (64, 64), halo=2, swizzle="128B")
    >>> tile.tile_shape, tile.tile_bytes
    ((66, 64), 8448)
    """
    check_integers(lower_corner=lower_corner, upper_corner=upper_corner, halo=halo, stride=stride)
    view, kind = view_and_element(array, dtype)
    sides = sides_of("tile_shape", tile_shape)
    TensorMapError.raise_for(_form_violations(view, sides, halo, mode))
    swizzle = Swizzle.of(swizzle, "swizzle")
    cut = _cut(kind, sides, halo * _HALOS[mode], swizzle)
    outer = (0,) * (view.ndim - 3)
    spec = Im2colSpec(
        address=view.address,
        dtype=kind.data_type,
        shape=extents(view, kind),
        strides_bytes=view.strides_bytes[:-1],
        lower_corner=(*outer, lower_corner),
        upper_corner=(*outer, upper_corner),
        channels_per_pixel=cut.box_shape[1],
        pixels_per_column=sides[0],
        element_strides=(1, *(1 for _ in outer), stride, 1),
        swizzle=swizzle,
        l2_promotion=L2Promotion.of(l2_promotion, "l2_promotion"),
        oob_fill=OOBFill.of(oob_fill, "oob_fill"),
        wide=mode,
        arch=arch,
    )
    TensorMapError.raise_for(
        [*layout_violations(view), *spec.violations(), *cut_violations(cut, arch)]
    )
    form = _Form(cut, view._replace(owner=None, lease=None), encoded(spec, view.device), halo, spec)
    return TMATensorTileIm2colW(form, view.address, view.owner, view.lease)


def _cut(kind: Element, sides: tuple[int, ...], halos: int, swizzle: Swizzle) -> Cut:
    width = Swizzle.B128 if kind.data_type.has_gaps else swizzle
    channels = sides[1]
    if width is not Swizzle.NONE:
        channels = min(channels, 8 * width.span_bytes // kind.shared_bits)
    pixels = sides[0] + halos
    return Cut(kind, (pixels, sides[1]), (pixels, equal_part(channels)), (1, 1), swizzle)


def _form_violations(
    view: ArrayView, sides: tuple[int, ...], halo: int, mode: object
) -> Iterator[Violation]:
    if view.ndim not in (3, 4, 5):
        rule = "images have 3 to 5 dimensions: (N, [D, [H,]] W, C)"
        remedy = "Reshape it, with images first and channels last"
        yield Violation("array", f"of {view.ndim} dimensions", rule, remedy)
    yield from per_side_violations(2, "tile_shape", sides)
    if not isinstance(mode, str) or mode not in WIDE_PIXELS:
        yield Violation("mode", repr(mode), "no mode has this name", "Pass w or w128")
    elif not 0 <= halo <= _MOST_HALO[mode]:
        rule = f"im2col::{mode.replace('128', '::128')} takes 0 to {_MOST_HALO[mode]} pixels"
        yield Violation("halo", halo, rule, "Use a smaller halo, or several loads")
