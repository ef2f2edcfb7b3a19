"""Tiles of arrays of 1 to 5 dimensions, behind a tensor map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView, fingerprint
from tmaasync._elements import element
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import TensorMapSpec
from tmaasync.tile.argument import MapForm, MapTile
from tmaasync.tile.cut import (
    Cut,
    argument_violations,
    cut_violations,
    default_box,
    equal_part,
    layout_violations,
    raise_if,
)

__all__ = ["TMATensorTile", "create_tensor_tile", "create_tma_tile"]


class _Access(NamedTuple):
    """How a tile is cut and moved: the arguments of `create_tma_tile`."""

    tile_shape: tuple[int, ...]
    swizzle: Swizzle
    box_shape: tuple[int, ...] | None
    l2_promotion: L2Promotion
    oob_fill: OOBFill
    interleave: Interleave
    element_strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Form(MapForm):
    spec: TensorMapSpec
    cuda_type: str
    address_mask: int


class TMATensorTile(MapTile):
    """A tensor map over an array, and the shape of the tile that one call moves.

    Made by `create_tma_tile`. Immutable; `rebind` gives the same tile over another array. Pass it
    to a kernel for a ``const __grid_constant__`` parameter of the type `cuda_type`. The array stays
    alive as long as the tile.
    """

    __slots__ = ()

    _form: _Form

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._form.view.shape))
        sides = "x".join(map(str, self.tile_shape))
        boxes = f", {self.boxes_per_tile} boxes" if self.boxes_per_tile > 1 else ""
        return (
            f"<TMATensorTile {sides} of {self.element} [{shape}] at {self._address:#x}, "
            f"{self._form.cut.swizzle}, {self.tile_bytes} bytes{boxes}>"
        )

    @property
    def spec(self) -> TensorMapSpec:
        """What the 128 bytes say."""
        return replace(self._form.spec, address=self._address)

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++; ``Kernel(types={"ATile": tile})`` gives it a name."""
        return self._form.cuda_type

    @property
    def tiles_per_side(self) -> tuple[int, ...]:
        """How many tiles cover the array along each side, outermost first."""
        strides = self._form.cut.element_strides
        spans = zip(self._form.view.shape, self.tile_shape, strides, strict=True)
        return tuple(-(-extent // (side * stride)) for extent, side, stride in spans)

    def rebind(self, array: object) -> TMATensorTile:
        """The same tile over another array of the same shape, strides, type and device.

        Raises:
            TensorMapError: The array differs, or its address is no multiple of 16.
        """
        view = _arrays.view(array, dtype=self.element)
        if view[1:5] != self._form.view[1:5]:
            raise TensorMapError(tuple(_differences(self._form.view, view)))
        return _tile(self._form, view)


def create_tma_tile(  # noqa: PLR0913 - one per field of the tensor map
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion = L2Promotion.B128,
    oob_fill: OOBFill = OOBFill.ZERO,
    interleave: Interleave = Interleave.NONE,
    element_strides: Sequence[int] | None = None,
    dtype: object = None,
) -> TMATensorTile:
    """Describe a tile of an array of 1 to 5 dimensions.

    Without swizzle the box is the tile, in as many equal parts as keep each side at 256 or less.
    With swizzle the box's last side is the swizzle's span (32, 64 or 128 bytes), and the tile lies
    in shared memory as ``[chunks][other sides][chunk]``. Asking again for a tile that was made
    before costs a look-up.

    Args:
        array: NumPy, CuPy, torch, JAX, or anything with DLPack or ``__cuda_array_interface__``. Its
            last dimension is contiguous; its other strides, in bytes, are multiples of 16.
        tile_shape: Elements per side, outermost first, one per dimension of the array.
        swizzle: How 16-byte chunks are permuted in shared memory, so that columns are read without
            bank conflicts. Operands of wgmma use ``Swizzle.B128``.
        box_shape: Elements per side of one instruction, where the rule above should not hold.
        l2_promotion: The granule in which L2 fetches what a load touches.
        oob_fill: What a load writes beyond the array: zero, or NaN for floating-point types.
        interleave: For channel-interleaved layouts of three or more dimensions.
        element_strides: Take every n-th element along a side, 1 to 8; the tile's sides count what
            lands in shared memory. The last is 1: the hardware ignores it (measured on an H200).
        dtype: The element type, where the array cannot say it (fp8 in bytes, tf32 in float32).

    Raises:
        TensorMapError: The tile breaks rules of the hardware; every one is listed with a remedy.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> tile = create_tma_tile(np.zeros((512, 256), np.float16), (128, 128), swizzle=Swizzle.B128)
    >>> tile.box_shape, tile.boxes_per_tile, tile.tile_bytes
    ((128, 64), 2, 32768)
    """
    seen = fingerprint(array)
    if seen is not None:
        # The hot path: one look-up finds all but the address, which needs a mask.
        address, layout = seen
        try:
            form = _FORMS[
                layout, tile_shape, swizzle, box_shape, l2_promotion, oob_fill, interleave,
                element_strides, dtype,
            ]  # fmt: skip
        except (KeyError, TypeError):  # TypeError: a list, which the slow path makes a tuple
            pass
        else:
            if not address & form.address_mask:
                return TMATensorTile(form, address, array)
    access = _Access(
        tuple(tile_shape),
        swizzle,
        None if box_shape is None else tuple(box_shape),
        l2_promotion,
        oob_fill,
        interleave,
        None if element_strides is None else tuple(element_strides),
    )
    kind = None if dtype is None else element(dtype)
    view = _arrays.view(array, dtype=kind)
    layout = (view[1:5], view.framework) if seen is None else seen[1]
    form = _form((layout, *access, kind), view, access)
    return _tile(form, view)


_MAX_FORMS = 4096
_FORMS: dict[object, _Form] = {}


def _form(key: object, view: ArrayView, access: _Access) -> _Form:
    form = _FORMS.get(key)
    if form is None:
        form = _new_form(view, access)
        if len(_FORMS) >= _MAX_FORMS:
            _FORMS.clear()
        _FORMS[key] = form
    return form


def _tile(form: _Form, view: ArrayView) -> TMATensorTile:
    """The tile at the view's address, which alone is still unchecked."""
    if view.address & form.address_mask:
        replace(form.spec, address=view.address).check()
    return TMATensorTile(form, view.address, view.owner, view.lease)


def _new_form(view: ArrayView, access: _Access) -> _Form:
    """Check everything and encode: the costly part of `create_tma_tile`."""
    if view.ndim == 0:
        remedy = "Pass array.reshape(1)"
        raise_if([Violation("array", "0-dimensional", "a tile has 1 to 5 sides", remedy)])
    strides = access.element_strides or (1,) * view.ndim
    raise_if(argument_violations(view.ndim, access.tile_shape, access.box_shape, strides))
    box = access.box_shape or default_box(access.tile_shape, view.element.itemsize, access.swizzle)
    cut = Cut(view.element, access.tile_shape, box, strides, access.swizzle)
    spec = TensorMapSpec(
        address=view.address,
        dtype=view.element.data_type,
        shape=view.shape,
        strides_bytes=view.strides_bytes[:-1],
        box_shape=cut.span_shape,
        element_strides=strides,
        interleave=access.interleave,
        swizzle=access.swizzle,
        l2_promotion=access.l2_promotion,
        oob_fill=access.oob_fill,
    )
    raise_if([*layout_violations(view), *spec.violations(), *cut_violations(cut)])
    descriptor = spec.encode() if view.device is None else _driver.encode(spec)
    mask = 31 if access.interleave is Interleave.B32 else 15
    template = view._replace(owner=None, lease=None)
    return _Form(cut, template, descriptor, spec, cut.cuda_type(), mask)


def create_tensor_tile(
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle = Swizzle.NONE,
    k_major_tma: bool = True,
    dtype: object = None,
) -> TMATensorTile:
    """Describe a tile that lies in shared memory as the tensor cores read it: cut at every chunk.

    A chunk is the swizzle's span, 16 bytes without swizzle, so that the tile is always
    ``[chunks][other sides][chunk]``; `create_tma_tile` leaves it whole without swizzle.

    Args:
        array: As in `create_tma_tile`; 1 to 5 dimensions.
        tile_shape: Elements per side, outermost first; without ``k_major_tma`` (M or N, K), which
            is not the order of the array.
        swizzle: As in `create_tma_tile`.
        k_major_tma: Whether K is the contiguous side. Else the array is (K, M or N).
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules of the hardware; every one is listed with a remedy.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> tile = create_tensor_tile(np.zeros((512, 256), np.float16), (128, 64))
    >>> tile.box_shape, tile.boxes_per_tile
    ((128, 8), 8)
    """
    sides = tuple(tile_shape)
    if not k_major_tma:
        raise_if(_order_violations(sides))
        sides = sides[::-1]
    itemsize = _arrays.view(array, dtype=dtype).element.itemsize
    raise_if(argument_violations(len(sides), sides, None, (1,) * len(sides)))
    chunk = min(sides[-1], swizzle.span_bytes // itemsize)
    box = (*(equal_part(side) for side in sides[:-1]), chunk)
    return create_tma_tile(array, sides, swizzle=swizzle, box_shape=box, dtype=dtype)


# --- what a tile must be ----------------------------------------------------------------------


def _order_violations(tile_shape: tuple[int, ...]) -> list[Violation]:
    if len(tile_shape) == 2:
        return []
    return [
        Violation(
            "k_major_tma",
            False,
            f"it swaps the two sides of a matrix, and tile_shape has {len(tile_shape)}",
            "Leave it out, and give tile_shape in the order of the array",
        )
    ]


def _differences(old: ArrayView, new: ArrayView) -> list[Violation]:
    pairs = {
        "array.shape": (old.shape, new.shape),
        "array.strides": (old.strides_bytes, new.strides_bytes),
        "array.device": (old.device, new.device),
    }
    return [
        Violation(
            argument,
            now,
            f"the tile was made for {before}",
            "Make a tile of its own for this array with create_tma_tile",
        )
        for argument, (before, now) in pairs.items()
        if before != now
    ]
