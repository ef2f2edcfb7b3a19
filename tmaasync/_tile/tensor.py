"""Tiles of an array of 1 to 5 dimensions, found in a cache by layout and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tmaasync._arrays import AddressReader, ArrayView, fingerprint
from tmaasync._tile.argument import MapTile, view_in_place
from tmaasync._tile.cut import sides_of
from tmaasync._tile.form import FORMS, TileForm, TileOptions, cached_form, rebind_violations
from tmaasync._tile.packed import view_and_element
from tmaasync.errors import TensorMapError
from tmaasync.modes import (
    Interleave,
    InterleaveName,
    L2Promotion,
    L2PromotionName,
    OOBFill,
    OOBFillName,
    Swizzle,
    SwizzleName,
)
from tmaasync.tensormap import TensorMapSpec


class TMATensorTile(MapTile):
    """A tensor map over an array, and the shape of the tile that one call moves.

    Made by `create_tma_tile`. Immutable; `rebind` returns the same tile over another array. Pass it
    to a kernel for a ``const __grid_constant__`` parameter of the type `cuda_type`. The tile keeps
    the array alive.
    """

    __slots__ = ()

    _form: TileForm

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._form.spec.shape))
        sides = "x".join(map(str, self.tile_shape))
        boxes = f", {self.boxes_per_tile} boxes" if self.boxes_per_tile > 1 else ""
        return (
            f"<TMATensorTile {sides} of {self.element} [{shape}] at {self._address:#x}, "
            f"{self._form.cut.swizzle}, {self.tile_bytes} bytes{boxes}>"
        )

    @property
    def spec(self) -> TensorMapSpec:
        """The fields of the tensor map."""
        return replace(self._form.spec, address=self._address)

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++; ``Kernel(types={"ATile": tile})`` gives it a name."""
        return self._form.cuda_type

    @property
    def tiles_per_side(self) -> tuple[int, ...]:
        """The number of tiles that cover the array along each side, outermost first."""
        strides = self._form.cut.element_strides
        spans = zip(self._form.spec.shape, self.tile_shape, strides, strict=True)
        return tuple(-(-extent // (side * stride)) for extent, side, stride in spans)

    def _address_reader(self) -> AddressReader | None:
        form = self._form
        where = _CURRENT_ADDRESS.get(form.view.framework)
        if where is None or type(self) is not TMATensorTile:  # others have more than the form
            return super()._address_reader()

        def read(tile: Any) -> int | None:
            if tile.__class__ is TMATensorTile and tile._form is form:
                address: int = tile._address
                return address if where(tile._owner) == address else None
            return None

        return read

    def rebind(self, array: object) -> TMATensorTile:
        """Return the same tile over another array of the same shape, strides, type and device.

        Raises:
            TensorMapError: The array differs, or its address is no multiple of 16.
        """
        view = view_in_place(array, self._owner, self._form.view.element)
        if view[1:5] != self._form.view[1:5]:
            raise TensorMapError.of(rebind_violations(self._form.view, view))
        return _tile_at(self._form, view)


# Frameworks that return an address in one call, and whose arrays are always writable.
_CURRENT_ADDRESS: dict[str, Callable[[Any], int]] = {
    "cupy": lambda array: array.data.ptr,
    "torch": lambda tensor: tensor.data_ptr(),
}


_INTS = frozenset({int})
_MODES = frozenset({str, Swizzle, L2Promotion, OOBFill, Interleave})


def create_tma_tile(  # noqa: PLR0913 - one per field of the tensor map
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    interleave: Interleave | InterleaveName = Interleave.NONE,
    element_strides: Sequence[int] | None = None,
    dtype: object = None,
    arch: str = "sm_90a",
) -> TMATensorTile:
    """Describe a tile of an array of 1 to 5 dimensions.

    Without swizzle the box is the tile, split into equal parts of at most 256 elements a side.
    With swizzle the box's last side is the swizzle's span (32, 64 or 128 bytes), and the layout in
    shared memory is ``[chunks][other sides][chunk]``. A repeated call with equal arguments costs
    one cache look-up.

    Args:
        array: NumPy, CuPy, torch, JAX, or anything with DLPack or ``__cuda_array_interface__``. Its
            last dimension is contiguous; its other strides, in bytes, are multiples of 16.
        tile_shape: Elements per side, outermost first, one per dimension of the array.
        swizzle: How 16-byte chunks are permuted in shared memory, so that columns are read without
            bank conflicts: ``"none"``, ``"32B"``, ``"64B"``, ``"128B"``, or a member of `Swizzle`.
            Operands of wgmma use ``"128B"``. ``"128B_ATOM_32B"``, ``"128B_ATOM_32B_FLIP_8B"`` and
            ``"128B_ATOM_64B"`` need ``arch="sm_100a"``.
        box_shape: Elements per side of one box; overrides the rule above.
        l2_promotion: The granule in which L2 fetches what a load touches: ``"none"``, ``"64B"``,
            ``"128B"``, ``"256B"``, or a member of `L2Promotion`.
        oob_fill: What a load writes beyond the array: ``"zero"``, or ``"nan"`` for floating-point
            types; or a member of `OOBFill`.
        interleave: Channel-interleaved layouts of three or more dimensions: ``"none"``, ``"16B"``,
            ``"32B"``, or a member of `Interleave`.
        element_strides: Take every n-th element along a side, 1 to 8; the tile's sides count what
            lands in shared memory. The last is 1: the hardware ignores it (measured on an H200).
        dtype: The element type, where the array does not state it (fp8 in bytes, tf32 in float32),
            as a NumPy dtype or a name such as ``"bf16"``, ``"fp16"``, ``"e4m3"``, ``"tf32"``. With
            ``arch="sm_100a"`` an array of bytes may hold ``"float4_e2m1fn"``, ``"float6_e2m3fn"``
            or ``"float6_e3m2fn"`` without padding, low bits first; shapes count these elements.
            Elements of 6 bits, and of 4 bits as ``"float4_e2m1fn_unpacked"``, take 16 bytes of
            shared memory for 16, and boxes are 128 wide.
        arch: The architecture whose rules hold; ``"sm_100a"`` and ``"sm_103a"`` have packed types
            and swizzles of larger atoms (cuda.h on ``cuTensorMapEncodeTiled``). Not run on a chip.

    Raises:
        TensorMapError: The tile breaks rules of the hardware; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> tile = create_tma_tile(np.zeros((512, 256), np.float16), (128, 128), swizzle="128B")
    >>> tile.box_shape, tile.boxes_per_tile, tile.tile_bytes
    ((128, 64), 2, 32768)
    """
    seen = fingerprint(array)
    if seen is not None:
        # Hot path: one look-up finds everything but the address, whose alignment a mask checks.
        address, layout = seen
        try:
            form = FORMS[
                layout, tile_shape, swizzle, box_shape, l2_promotion, oob_fill, interleave,
                element_strides, arch, dtype,
            ]  # fmt: skip
        except (KeyError, TypeError):  # TypeError: a list; the slow path turns it into a tuple
            pass
        else:
            # Reject equal values of other types: 8.0 == 8, and 0 == OOBFill.ZERO. The check takes
            # 0.1 us of 0.8 us (CuPy arrays without a GPU, 2026-11-23).
            if (
                not address & form.address_mask
                and (swizzle.__class__ in _MODES and l2_promotion.__class__ in _MODES)
                and (oob_fill.__class__ in _MODES and interleave.__class__ in _MODES)
                and (tile_shape is form.cut.tile_shape or _INTS.issuperset(map(type, tile_shape)))
                and (box_shape is None or _INTS.issuperset(map(type, box_shape)))
                and (element_strides is None or _INTS.issuperset(map(type, element_strides)))
            ):
                return TMATensorTile(form, address, array)
    options = TileOptions(
        sides_of("tile_shape", tile_shape),
        swizzle,
        None if box_shape is None else sides_of("box_shape", box_shape),
        l2_promotion,
        oob_fill,
        interleave,
        None if element_strides is None else sides_of("element_strides", element_strides),
        arch,
    )
    view, kind = view_and_element(array, dtype)
    options.check(view.ndim)
    layout = (view[1:5], view.framework) if seen is None else seen[1]
    form = cached_form((layout, *options, dtype if dtype is None else kind), view, kind, options)
    return _tile_at(form, view)


def _tile_at(form: TileForm, view: ArrayView) -> TMATensorTile:
    """Return the tile at the view's address, the only part of the map not yet checked."""
    if view.address & form.address_mask:
        replace(form.spec, address=view.address).check()
    return TMATensorTile(form, view.address, view.owner, view.lease)
