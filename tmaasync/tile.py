"""Tiles: the parts of an array that one device call moves to or from shared memory.

One TMA instruction moves a box; a tile is one or more boxes. The 128-byte tensor map holds the
array's address, shape and strides, and the box shape. The tile's CUDA C++ type, ``cuda_type``,
holds the shapes, swizzle and byte counts that the compiler needs.

| device call | moves one tile | out of bounds | complete when |
|---|---|---|---|
| ``async_copy`` | array to shared memory | writes fill | `tile_bytes` landed on its barrier |
| ``async_multicast_load`` | the same, to many CTAs | writes fill | the same, in every CTA |
| ``async_store`` | shared memory to array | is dropped | ``commit_group``, ``wait_group`` |
| ``async_reduce`` | the same, combining | is dropped | the same |

Fill bytes count as landed: a barrier expects the full `tile_bytes` at the array's edges too.

| swizzle | default box | tile in shared memory |
|---|---|---|
| ``NONE`` | the tile, in equal parts of at most 256 elements a side | box after box, row-major |
| ``B32``, ``B64``, ``B128`` | last side: 32, 64, 128 bytes | ``[chunks][other sides][chunk]`` |

| factory | source | tile |
|---|---|---|
| `create_tma_tile` | an array of 1 to 5 dimensions | `TMATensorTile` |
| `create_tensor_tile` | an operand of wgmma | `TMATensorTile` |
| `create_tma_tile_gather4` | rows of a matrix, gathered by index | `TMATensorTile` |
| `create_tma_tile_template` | no array yet | `TMATensorTileTemplate` |
| `create_split_tma` | memory with extents known at run time | `SplitLastDimTMATensorTile` |
| `create_tma_tile_im2col` | images of a convolution (im2col) | `TMATensorTileIm2col` |

Shapes list the outermost side first, device coordinates the innermost. (PTX ISA, "Tensors".)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import AddressReader, ArrayView, fingerprint
from tmaasync._elements import element
from tmaasync._kinds import not_flags, not_integers
from tmaasync._tile.argument import KernelArgument, MapTile, UnboundTile, view_in_place
from tmaasync._tile.array import TMATensorTileArray
from tmaasync._tile.bulk import BulkTile
from tmaasync._tile.cut import Cut, argument_violations, default_box, sides_of
from tmaasync._tile.form import FORMS, TileForm, TileOptions, cached_form, rebind_violations
from tmaasync._tile.gather import gather4_box, gather4_tile_bytes
from tmaasync._tile.im2col import TMATensorTileIm2col, create_tma_tile_im2col
from tmaasync._tile.operand import array_sides, operand_box
from tmaasync._tile.pointer import Pointer
from tmaasync._tile.split import SplitLayout, split_violations
from tmaasync._tile.strided import StridedTensor
from tmaasync._tile.template import template_violations
from tmaasync.errors import ArgumentError, TensorMapError, Violation
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

__all__ = [
    "BulkTile",
    "KernelArgument",
    "Pointer",
    "SplitLastDimTMATensorTile",
    "StridedTensor",
    "TMATensorTile",
    "TMATensorTileArray",
    "TMATensorTileIm2col",
    "TMATensorTileTemplate",
    "create_split_tma",
    "create_tensor_tile",
    "create_tma_tile",
    "create_tma_tile_gather4",
    "create_tma_tile_im2col",
    "create_tma_tile_template",
    "gather4_tile_bytes",
]


class TMATensorTile(MapTile):
    """A tensor map over an array, and the shape of the tile that one call moves.

    Made by `create_tma_tile`. Immutable; `rebind` returns the same tile over another array. Pass it
    to a kernel for a ``const __grid_constant__`` parameter of the type `cuda_type`. The tile keeps
    the array alive.
    """

    __slots__ = ()

    _form: TileForm

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
        spans = zip(self._form.view.shape, self.tile_shape, strides, strict=True)
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
            Operands of wgmma use ``"128B"``.
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
            as a NumPy dtype or a name such as ``"bf16"``, ``"fp16"``, ``"e4m3"``, ``"tf32"``.

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
                element_strides, dtype,
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
    )
    kind = None if dtype is None else element(dtype)
    view = _arrays.view(array, dtype=kind)
    options.check(view.ndim)
    layout = (view[1:5], view.framework) if seen is None else seen[1]
    form = cached_form((layout, *options, kind), view, options)
    return _tile_at(form, view)


def _tile_at(form: TileForm, view: ArrayView) -> TMATensorTile:
    """Return the tile at the view's address, the only part of the map not yet checked."""
    if view.address & form.address_mask:
        replace(form.spec, address=view.address).check()
    return TMATensorTile(form, view.address, view.owner, view.lease)


def create_tensor_tile(
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    k_major_tma: bool = True,
    dtype: object = None,
) -> TMATensorTile:
    """Describe a tile in the shared-memory layout of a wgmma operand: one box per chunk.

    A chunk is the swizzle's span, or 16 bytes without swizzle. The layout is therefore always
    ``[chunks][other sides][chunk]``; without swizzle `create_tma_tile` would use a single box.
    (PTX ISA, "Shared memory matrix layout" of ``wgmma``.)

    Args:
        array: As in `create_tma_tile`; 1 to 5 dimensions.
        tile_shape: Elements per side, outermost first. With ``k_major_tma=False`` it is
            (M or N, K), the reverse of the array's order.
        swizzle: As in `create_tma_tile`.
        k_major_tma: Whether K is the contiguous side. If not, the array is (K, M or N).
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules of the hardware; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> tile = create_tensor_tile(np.zeros((512, 256), np.float16), (128, 64))
    >>> tile.box_shape, tile.boxes_per_tile
    ((128, 8), 8)
    """
    sides = array_sides(sides_of("tile_shape", tile_shape), k_major=k_major_tma)
    itemsize = _arrays.view(array, dtype=dtype).element.itemsize
    mode = Swizzle.of(swizzle, "swizzle")
    box = operand_box(sides, itemsize, mode)
    return create_tma_tile(array, sides, swizzle=mode, box_shape=box, dtype=dtype)


def create_tma_tile_gather4(
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    dtype: object = None,
) -> TMATensorTile:
    """Describe a tile of a matrix whose rows a kernel gathers by index, four at a time.

    TMA's gather4 instruction needs sm_100. On Hopper a box is one row of a chunk, and
    ``async_copy_gather4`` issues one load per box. The layout in shared memory is the same:
    ``[chunks][rows][chunk]``. Rows and columns outside the matrix are filled.

    Args:
        array: A matrix (rows, columns) with contiguous rows, as in `create_tma_tile`.
        tile_shape: Rows, a multiple of 4, and columns.
        swizzle: ``"none"`` or ``"128B"``: every row of a chunk starts at a multiple of 128 bytes.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> tile = create_tma_tile_gather4(
    ...     np.zeros((1000, 512), np.float16), (16, 128), swizzle=Swizzle.B128
    ... )
    >>> tile.box_shape, tile.boxes_per_tile, tile.tile_bytes
    ((1, 64), 32, 4096)
    """
    view = _arrays.view(array, dtype=dtype)
    sides, mode = sides_of("tile_shape", tile_shape), Swizzle.of(swizzle, "swizzle")
    box = gather4_box(view.ndim, sides, view.element.itemsize, mode)
    return create_tma_tile(
        array,
        sides,
        swizzle=mode,
        box_shape=box,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
        dtype=dtype,
    )


@dataclass(frozen=True, slots=True)
class TMATensorTileTemplate(UnboundTile):
    """A tile's type and sizes, without an array; made by `create_tma_tile_template`.

    Build a kernel with it (``Kernel(types={"Tile": template})``). To launch the kernel, pass the
    tile that `bind` returns for an array.
    """

    cut: Cut
    l2_promotion: L2Promotion
    oob_fill: OOBFill
    interleave: Interleave

    @property
    def _cut(self) -> Cut:
        return self.cut

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++; the tiles that `bind` returns have the same type."""
        return self.cut.cuda_type()

    def bind(self, array: object) -> TMATensorTile:
        """Return the tile over an array, as `create_tma_tile` makes it.

        Raises:
            TensorMapError: The array breaks rules of this tile; every one is listed.
            ArrayTypeError: Not an array, or its elements have another width.
        """
        return create_tma_tile(
            array,
            self.cut.tile_shape,
            swizzle=self.cut.swizzle,
            box_shape=self.cut.box_shape,
            l2_promotion=self.l2_promotion,
            oob_fill=self.oob_fill,
            interleave=self.interleave,
            element_strides=self.cut.element_strides,
            dtype=self.cut.element,
        )


def create_tma_tile_template(  # noqa: PLR0913 - one per field of the tensor map
    tile_shape: Sequence[int],
    dtype: object,
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    interleave: Interleave | InterleaveName = Interleave.NONE,
    element_strides: Sequence[int] | None = None,
) -> TMATensorTileTemplate:
    """Describe a tile before there is an array, with the arguments of `create_tma_tile`.

    Args:
        tile_shape: Elements per side, outermost first, one per dimension of the arrays.
        dtype: The element type, as a NumPy dtype, a name such as ``"bf16"``, or a ``DataType``.
        swizzle: As in `create_tma_tile`.
        box_shape: As in `create_tma_tile`.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        interleave: As in `create_tma_tile`.
        element_strides: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules for every array; each is listed.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: TMA on Hopper cannot move these elements.

    >>> import numpy as np
    >>> template = create_tma_tile_template((64, 64), np.float16, swizzle=Swizzle.B128)
    >>> template.tile_bytes, template.bind(np.zeros((256, 256), np.float16)).tiles_per_side
    (8192, (4, 4))
    """
    sides, kind = sides_of("tile_shape", tile_shape), element(dtype)
    strides = element_strides
    strides = (1,) * len(sides) if strides is None else sides_of("element_strides", strides)
    given = None if box_shape is None else sides_of("box_shape", box_shape)
    if not sides:
        rule, remedy = "a tile has 1 to 5 sides", "Pass a number for each dimension of the arrays"
        TensorMapError.raise_for([Violation("tile_shape", sides, rule, remedy)])
    TensorMapError.raise_for(argument_violations(len(sides), sides, given, strides))
    mode = Swizzle.of(swizzle, "swizzle")
    cut = Cut(kind, sides, given or default_box(sides, kind.itemsize, mode), strides, mode)
    rest = (
        L2Promotion.of(l2_promotion, "l2_promotion"),
        OOBFill.of(oob_fill, "oob_fill"),
        Interleave.of(interleave, "interleave"),
    )
    TensorMapError.raise_for(template_violations(cut, *rest))
    return TMATensorTileTemplate(cut, *rest)


class SplitLastDimTMATensorTile(TMATensorTile):
    """A tile of whole chunks in shared memory; made by `create_split_tma`.

    ``spec``, ``tile_shape`` and ``box_shape`` describe the tensor map, which has four or five
    dimensions if the tile is folded. `smem_shape` is the tile shape that the caller passed.
    """

    __slots__ = ("_split",)

    _split: SplitLayout

    @property
    def smem_shape(self) -> tuple[int, ...]:
        """The tile in the array's dimensions, outermost first, without padding."""
        return self._split.tile_shape

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++."""
        if not self._split.is_folded:
            return super().cuda_type
        return self._split.cuda_type(self.element.cuda_type)

    def rebind(self, array: object) -> SplitLastDimTMATensorTile:
        """Return the same tile over other contiguous memory of at least the same size.

        Raises:
            TensorMapError: The memory is too small, or its address is no multiple of 16.
        """
        return _split_tile(view_in_place(array, self._owner, self.element), self._split)


def create_split_tma(  # noqa: PLR0913 - one per field of the tensor map
    array: object,
    tile_shape: Sequence[int],
    *,
    gmem_shape: Sequence[int] | None = None,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    fold_chunks: int = 1,
    row_major: bool = False,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    dtype: object = None,
) -> SplitLastDimTMATensorTile:
    """Describe a tile of whole chunks over contiguous memory, with extents given at run time.

    The last side is padded up to a multiple of the chunk (the swizzle's span, 16 bytes without
    swizzle); elements outside the array are fill. The tile in shared memory is
    ``[chunks][other sides][chunk]``.

    With ``fold_chunks`` one instruction loads all chunks of ``(rows, 1, depth)`` from
    ``(rows, heads, depth)``. A box cannot be wider than a swizzled chunk, so the map has a
    dimension for the chunks. Device coordinates remain ``{depth, head, row}``.

    Args:
        array: Contiguous memory of any shape, as in `create_tma_tile`.
        tile_shape: Elements per side, outermost first.
        gmem_shape: Extents of the global tensor, outermost first, contiguous from the array's
            start. Use it for extents known only at run time, such as the rows in use. By default
            the array's shape.
        swizzle: As in `create_tma_tile`.
        fold_chunks: Chunks along the last side that one instruction moves: 1, or all of them.
        row_major: Lay a folded tile out as ``[rows / 8][chunks][8][chunk]``.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> cache = np.zeros((4096, 8, 128), np.float16)
    >>> tile = create_split_tma(
    ...     cache, (64, 1, 128), gmem_shape=(1000, 8, 128), swizzle="128B", fold_chunks=2
    ... )
    >>> tile.box_shape, tile.boxes_per_tile
    ((1, 2, 64, 64), 1)
    """
    ArgumentError.raise_for(
        [*not_integers(fold_chunks=fold_chunks), *not_flags(row_major=row_major)]
    )
    view = _arrays.view(array, dtype=dtype)
    split = SplitLayout(
        sides_of("tile_shape", tile_shape),
        view.shape if gmem_shape is None else sides_of("gmem_shape", gmem_shape),
        Swizzle.of(swizzle, "swizzle"),
        fold_chunks,
        row_major,
        L2Promotion.of(l2_promotion, "l2_promotion"),
        OOBFill.of(oob_fill, "oob_fill"),
    )
    return _split_tile(view, split)


def _split_tile(view: ArrayView, split: SplitLayout) -> SplitLastDimTMATensorTile:
    TensorMapError.raise_for(split_violations(view, split))
    itemsize = view.element.itemsize
    strides = tuple(stride * itemsize for stride in split.map_strides(itemsize))
    tile = create_tma_tile(
        view._replace(shape=split.map_shape(itemsize), strides_bytes=strides),
        split.map_tile(itemsize),
        swizzle=split.swizzle,
        box_shape=split.map_box(itemsize),
        l2_promotion=split.l2_promotion,
        oob_fill=split.oob_fill,
    )
    made = SplitLastDimTMATensorTile(tile._form, tile._address, tile._owner, tile._lease)
    made._split = split
    return made
