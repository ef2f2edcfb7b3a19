"""Tiles: what one TMA call moves between an array and shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView, fingerprint
from tmaasync._elements import Element, element
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import MAX_SHARED_BYTES, TensorMapSpec

__all__ = ["BulkTile", "TMATensorTile", "create_tma_tile"]

_MAX_BOX_SIDE = 256
_BOX_START_ALIGNMENT = 128
_BULK_GRANULE_BYTES = 16


class _Access(NamedTuple):
    """How a tile is cut and moved: the arguments of `create_tma_tile`."""

    tile_shape: tuple[int, ...]
    swizzle: Swizzle
    box_shape: tuple[int, ...] | None
    l2_promotion: L2Promotion
    oob_fill: OOBFill
    interleave: Interleave
    element_strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Cut:
    """A tile and the boxes it is cut into; sides count what lands in shared memory."""

    element: Element
    tile_shape: tuple[int, ...]
    box_shape: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Swizzle

    @property
    def boxes_per_side(self) -> tuple[int, ...]:
        return tuple(
            -(-side // box) for side, box in zip(self.tile_shape, self.box_shape, strict=True)
        )

    @property
    def box_bytes(self) -> int:
        return math.prod(self.box_shape) * self.element.itemsize

    @property
    def boxes(self) -> int:
        return math.prod(self.boxes_per_side)

    @property
    def tile_bytes(self) -> int:
        return self.boxes * self.box_bytes

    @property
    def span_shape(self) -> tuple[int, ...]:
        """The map's box, which counts what the element strides skip (cuda.h)."""
        pairs = zip(self.box_shape, self.element_strides, strict=True)
        return tuple(side * stride for side, stride in pairs)

    def cuda_type(self) -> str:
        arguments = [
            self.element.cuda_type,
            _cuda_sides("Shape", self.tile_shape),
            _cuda_sides("Box", self.box_shape),
            f"tmaasync::Swizzle::{_CUDA_SWIZZLE[self.swizzle]}",
        ]
        if any(stride != 1 for stride in self.element_strides):
            arguments.append(_cuda_sides("Shape", self.element_strides))
        return f"tmaasync::TMATensorTile<{', '.join(arguments)}>"


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """Everything about a tile but where its array lies: shared by all tiles that look alike."""

    cut: _Cut
    view: ArrayView  # of the first array of this form, without its owner
    spec: TensorMapSpec
    descriptor: bytes
    cuda_type: str
    address_mask: int


_CUDA_SWIZZLE = {
    Swizzle.NONE: "kNone",
    Swizzle.B32: "k32B",
    Swizzle.B64: "k64B",
    Swizzle.B128: "k128B",
}


def _cuda_sides(template: str, sides: Sequence[int]) -> str:
    return f"tmaasync::{template}<{', '.join(map(str, sides))}>"


class TMATensorTile:
    """A tensor map over an array, and the shape of the tile that one call moves.

    Made by `create_tma_tile`. Immutable; `rebind` gives the same tile over another array. Pass it
    to a kernel for a ``const __grid_constant__`` parameter of the type `cuda_type`. The array stays
    alive as long as the tile.
    """

    __slots__ = ("_address", "_form", "_lease", "_owner")

    def __init__(self, form: _Form, address: int, owner: object, lease: object = None) -> None:
        """Use `create_tma_tile`."""
        self._form = form
        self._address = address
        self._owner = owner
        self._lease = lease

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._form.view.shape))
        sides = "x".join(map(str, self.tile_shape))
        boxes = f", {self.boxes_per_tile} boxes" if self.boxes_per_tile > 1 else ""
        return (
            f"<TMATensorTile {sides} of {self.element} [{shape}] at {self._address:#x}, "
            f"{self._form.cut.swizzle}, {self.tile_bytes} bytes{boxes}>"
        )

    @property
    def descriptor(self) -> bytes:
        """The 128 bytes of the ``CUtensorMap``; the first eight are the array's address."""
        return self._address.to_bytes(8, "little") + self._form.descriptor[8:]

    @property
    def _view(self) -> ArrayView:
        return self._form.view._replace(address=self._address, owner=self._owner, lease=self._lease)

    @property
    def spec(self) -> TensorMapSpec:
        """What the 128 bytes say."""
        return replace(self._form.spec, address=self._address)

    @property
    def element(self) -> Element:
        """The element type, as NumPy, the tensor map and the kernel name it."""
        return self._form.cut.element

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements that one call brings to shared memory, outermost side first."""
        return self._form.cut.tile_shape

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Elements that one instruction brings to shared memory, outermost side first."""
        return self._form.cut.box_shape

    @property
    def boxes_per_tile(self) -> int:
        """Instructions that one call issues."""
        return self._form.cut.boxes

    @property
    def tile_bytes(self) -> int:
        """Bytes that one tile takes in shared memory, and that a barrier must expect for a load.

        Elements out of bounds are included: TMA fills and credits them.
        """
        return self._form.cut.tile_bytes

    @property
    def smem_alignment(self) -> int:
        """Alignment in bytes that the tile needs in shared memory."""
        return self._form.cut.swizzle.alignment

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++; ``Kernel(types={"ATile": tile})`` gives it a name."""
        return self._form.cuda_type

    @property
    def array(self) -> object:
        """The array behind the tile."""
        return self._owner

    @property
    def byte_bounds(self) -> tuple[int, int]:
        """The lowest address of the array, and the one after its highest."""
        return self._view.byte_bounds

    @property
    def device(self) -> int | None:
        """Ordinal of the CUDA device the array is on; None for host memory."""
        return self._form.view.device

    @property
    def framework(self) -> str:
        """Whose array it is: numpy, cupy, torch, jax or other."""
        return self._form.view.framework

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

    @property
    def is_current(self) -> bool:
        """Whether the array is still where the map says."""
        seen = fingerprint(self._owner)
        if seen is not None:
            return seen[0] == self._address
        return _arrays.current_address(self._view) == self._address

    def check_alive(self, argument: str = "tile") -> None:
        """Check that the array is still where the map says.

        Raises:
            StaleTileError: It was freed, resized or moved since the tile was made.
        """
        _arrays.require_current(self._view, argument)


def create_tma_tile(  # noqa: PLR0913 - one per field of the tensor map
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion = L2Promotion.B256,
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
        _raise_if([Violation("array", "0-dimensional", "a tile has 1 to 5 sides", remedy)])
    strides = access.element_strides or (1,) * view.ndim
    _raise_if(_argument_violations(view.ndim, access.tile_shape, access.box_shape, strides))
    box = access.box_shape or _default_box(access.tile_shape, view.element.itemsize, access.swizzle)
    cut = _Cut(view.element, access.tile_shape, box, strides, access.swizzle)
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
    _raise_if([*_layout_violations(view), *spec.violations(), *_cut_violations(cut)])
    descriptor = spec.encode() if view.device is None else _driver.encode(spec)
    mask = 31 if access.interleave is Interleave.B32 else 15
    template = view._replace(owner=None, lease=None)
    return _Form(cut, template, spec, descriptor, cut.cuda_type(), mask)


def _default_box(tile_shape: tuple[int, ...], itemsize: int, swizzle: Swizzle) -> tuple[int, ...]:
    last = tile_shape[-1]
    if swizzle is not Swizzle.NONE:
        last = min(last, swizzle.span_bytes // itemsize)
    return (*(_equal_part(side) for side in tile_shape[:-1]), _equal_part(last))


def _equal_part(side: int) -> int:
    """The largest divisor of a side that a box may have."""
    return next(part for part in range(min(side, _MAX_BOX_SIDE), 0, -1) if side % part == 0)


# --- what a tile must be ----------------------------------------------------------------------


def _raise_if(violations: Sequence[Violation]) -> None:
    if violations:
        raise TensorMapError(tuple(violations))


def _argument_violations(
    rank: int,
    tile_shape: tuple[Any, ...],
    box_shape: tuple[Any, ...] | None,
    element_strides: tuple[Any, ...],
) -> list[Violation]:
    per_side = {"tile_shape": tile_shape, "element_strides": element_strides}
    if box_shape is not None:
        per_side["box_shape"] = box_shape
    found = [
        violation
        for argument, values in per_side.items()
        for violation in _per_side_violations(rank, argument, values)
    ]
    if not found and element_strides[-1:] not in ((), (1,)):
        found.append(
            Violation(
                f"element_strides[{rank - 1}]",
                element_strides[-1],
                "the hardware ignores the innermost element stride (measured on an H200)",
                "Pass 1 there and pick the elements in the kernel",
            )
        )
    return found


def _per_side_violations(rank: int, argument: str, values: tuple[Any, ...]) -> Iterator[Violation]:
    if len(values) != rank:
        yield Violation(
            argument,
            values,
            f"the array has {rank} dimensions and needs one number for each",
            f"Pass {rank} numbers, outermost first",
        )
    for dim, value in enumerate(values):
        if not _is_positive_integer(value):
            yield Violation(
                f"{argument}[{dim}]",
                repr(value),
                "it must be a positive integer",
                "Pass an int of 1 or more",
            )


def _is_positive_integer(value: object) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__") and value.__index__() > 0


def _layout_violations(view: ArrayView) -> list[Violation]:
    """Rules that the spec cannot state, because it has no innermost stride."""
    last, itemsize = view.strides_bytes[-1], view.element.itemsize
    if last == itemsize or view.shape[-1] <= 1:
        return []
    return [
        Violation(
            f"array.strides[{view.ndim - 1}]",
            last,
            f"the last dimension must be contiguous, {itemsize} bytes apart",
            "Transpose the array so that its contiguous dimension is the last, or copy it "
            "(cupy.ascontiguousarray)",
        )
    ]


def _cut_violations(cut: _Cut) -> list[Violation]:
    found = []
    if cut.tile_bytes > MAX_SHARED_BYTES:
        found.append(
            Violation(
                "tile_shape",
                cut.tile_shape,
                f"it takes {cut.tile_bytes} bytes and a block has {MAX_SHARED_BYTES} bytes of "
                "shared memory",
                "Choose a smaller tile; two to four of them fit a ring",
            )
        )
    row_bytes, span = cut.box_shape[-1] * cut.element.itemsize, cut.swizzle.span_bytes
    if cut.swizzle is not Swizzle.NONE and row_bytes < span:
        found.append(
            Violation(
                f"tile_shape[{len(cut.tile_shape) - 1}]",
                cut.tile_shape[-1],
                f"its rows are {row_bytes} bytes and {cut.swizzle} lays rows {span} bytes apart in "
                "shared memory (measured on an H200), which would leave gaps",
                f"Use {span // cut.element.itemsize} elements, or the swizzle of that width",
            )
        )
    if cut.boxes > 1 and cut.box_bytes % _BOX_START_ALIGNMENT:
        found.append(
            Violation(
                "box_shape",
                cut.box_shape,
                f"a box of {cut.box_bytes} bytes would make the next one start off a multiple of "
                f"{_BOX_START_ALIGNMENT} bytes",
                "Choose a tile that is one box, or a box of a multiple of 128 bytes",
            )
        )
    return found


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


# --- plain one-dimensional arrays -------------------------------------------------------------


class BulkTile:
    """A tile of contiguous memory for 1-D bulk copies: no tensor map, any length.

    Pass it to a kernel for a parameter of the type `cuda_type`.

    Args:
        array: A contiguous array of any rank that starts at a multiple of 16 bytes.
        tile_bytes: Bytes of one tile, a multiple of 16.

    Attributes:
        size_bytes: What the tiles cover: the array's bytes, rounded down to a multiple of 16.

    Raises:
        ArgumentError: The array is not contiguous, or an address or size is no multiple of 16.
    """

    __slots__ = ("_view", "descriptor", "size_bytes", "tile_bytes")

    def __init__(self, array: object, tile_bytes: int) -> None:
        """Check the array; nothing is encoded."""
        view = _arrays.view(array)
        _raise_if(_bulk_violations(view, tile_bytes))
        whole = math.prod(view.shape) * view.element.itemsize
        self._view = view
        self.tile_bytes = tile_bytes
        self.size_bytes = whole - whole % _BULK_GRANULE_BYTES
        self.descriptor = view.address.to_bytes(8, "little") + self.size_bytes.to_bytes(8, "little")

    @property
    def smem_alignment(self) -> int:
        """Alignment in bytes that the tile needs in shared memory."""
        return _BOX_START_ALIGNMENT

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++."""
        return f"tmaasync::BulkTile<unsigned char, {self.tile_bytes}>"

    @property
    def array(self) -> object:
        """The array behind the tile."""
        return self._view.owner

    @property
    def byte_bounds(self) -> tuple[int, int]:
        """The lowest address of the array, and the one after its highest."""
        return self._view.byte_bounds

    @property
    def device(self) -> int | None:
        """Ordinal of the CUDA device the array is on; None for host memory."""
        return self._view.device

    @property
    def framework(self) -> str:
        """Whose array it is: numpy, cupy, torch, jax or other."""
        return self._view.framework

    @property
    def is_current(self) -> bool:
        """Whether the array is still where it was."""
        return _arrays.current_address(self._view) == self._view.address

    def check_alive(self, argument: str = "tile") -> None:
        """Check that the array is still where it was.

        Raises:
            StaleTileError: It was freed, resized or moved since the tile was made.
        """
        _arrays.require_current(self._view, argument)


def _bulk_violations(view: ArrayView, tile_bytes: int) -> list[Violation]:
    found = []
    if not _arrays.is_contiguous(view):
        found.append(
            Violation(
                "array.strides",
                view.strides_bytes,
                "a bulk copy moves contiguous memory",
                "Use create_tma_tile, which honours strides",
            )
        )
    if view.address % _BULK_GRANULE_BYTES:
        found.append(
            Violation(
                "array's address",
                f"{view.address:#x}",
                "it must be a multiple of 16",
                "Slice the array at a multiple of 16 bytes",
            )
        )
    if not _is_positive_integer(tile_bytes) or tile_bytes % _BULK_GRANULE_BYTES:
        found.append(
            Violation(
                "tile_bytes",
                repr(tile_bytes),
                "it must be a positive multiple of 16",
                "Pass 16384 or 32768",
            )
        )
    return found
