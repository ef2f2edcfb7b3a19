"""Split tiles: the last side is padded to whole chunks, or folded into one box."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._kinds import not_flags, not_integers
from tmaasync._tile.argument import view_in_place
from tmaasync._tile.cut import CUDA_SWIZZLE, per_side_violations, sides_of
from tmaasync._tile.tensor import TMATensorTile, create_tma_tile
from tmaasync.errors import ArgumentError, TensorMapError, Violation
from tmaasync.modes import (
    L2Promotion,
    L2PromotionName,
    OOBFill,
    OOBFillName,
    Swizzle,
    SwizzleName,
)

_ATOM_ROWS = 8


@dataclass(frozen=True, slots=True)
class _Layout:
    """The arguments of `create_split_tma`; a folded tile has rows, heads and depth."""

    tile_shape: tuple[int, ...]
    gmem_shape: tuple[int, ...]
    swizzle: Swizzle
    fold_chunks: int
    row_major: bool
    l2_promotion: L2Promotion
    oob_fill: OOBFill
    arch: str

    def chunk(self, itemsize: int) -> int:
        return self.swizzle.span_bytes // itemsize

    @property
    def is_folded(self) -> bool:
        return self.fold_chunks > 1

    def map_shape(self, itemsize: int) -> tuple[int, ...]:
        """Return the array's dimensions as the map has them."""
        if not self.is_folded:
            return self.gmem_shape
        rows, heads, depth = self.gmem_shape
        chunk = self.chunk(itemsize)
        if self.row_major:
            return heads, rows // _ATOM_ROWS, depth // chunk, _ATOM_ROWS, chunk
        return heads, depth // chunk, rows, chunk

    def map_strides(self, itemsize: int) -> tuple[int, ...]:
        """Return the strides in elements, one per dimension of `map_shape`."""
        if not self.is_folded:
            return tuple(
                math.prod(self.gmem_shape[dim + 1 :]) for dim in range(len(self.gmem_shape))
            )
        _, heads, depth = self.gmem_shape
        row, chunk = heads * depth, self.chunk(itemsize)
        if self.row_major:
            return depth, _ATOM_ROWS * row, chunk, row, 1
        return depth, chunk, row, 1

    def map_tile(self, itemsize: int) -> tuple[int, ...]:
        """Return the tile's sides in the map's dimensions."""
        chunk = self.chunk(itemsize)
        rows = self.tile_shape[0]
        if not self.is_folded:
            return (*self.tile_shape[:-1], -(-self.tile_shape[-1] // chunk) * chunk)
        if self.row_major:
            return 1, rows // _ATOM_ROWS, self.fold_chunks, _ATOM_ROWS, chunk
        return 1, self.fold_chunks, rows, chunk

    def map_box(self, itemsize: int) -> tuple[int, ...]:
        """Return what one instruction moves: a folded tile is one box."""
        if self.is_folded:
            return self.map_tile(itemsize)
        return (*self.tile_shape[:-1], self.chunk(itemsize))

    def cuda_type(self, element: str) -> str:
        """Return a folded tile's type; its coordinates in a kernel run over the unfolded array."""
        rows, _, depth = self.tile_shape
        return (
            f"tmaasync::SplitLastDimTMATensorTile<{element}, {rows}, {depth}, "
            f"tmaasync::Swizzle::{CUDA_SWIZZLE[self.swizzle]}, {str(self.row_major).lower()}>"
        )


class SplitLastDimTMATensorTile(TMATensorTile):
    """A tile of whole chunks in shared memory; made by `create_split_tma`.

    ``spec``, ``tile_shape`` and ``box_shape`` describe the tensor map, which has four or five
    dimensions if the tile is folded. `smem_shape` is the tile shape that the caller passed.
    """

    __slots__ = ("_split",)

    _split: _Layout

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
    arch: str = "sm_90a",
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
        dtype: As in `create_tma_tile`, but for packed types.
        arch: As in `create_tma_tile`.

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
    split = _Layout(
        sides_of("tile_shape", tile_shape),
        view.shape if gmem_shape is None else sides_of("gmem_shape", gmem_shape),
        Swizzle.of(swizzle, "swizzle"),
        fold_chunks,
        row_major,
        L2Promotion.of(l2_promotion, "l2_promotion"),
        OOBFill.of(oob_fill, "oob_fill"),
        arch,
    )
    return _split_tile(view, split)


def _split_tile(view: ArrayView, split: _Layout) -> SplitLastDimTMATensorTile:
    TensorMapError.raise_for(_split_violations(view, split))
    itemsize = view.element.itemsize
    strides = tuple(stride * itemsize for stride in split.map_strides(itemsize))
    tile = create_tma_tile(
        view._replace(shape=split.map_shape(itemsize), strides_bytes=strides),
        split.map_tile(itemsize),
        swizzle=split.swizzle,
        box_shape=split.map_box(itemsize),
        l2_promotion=split.l2_promotion,
        oob_fill=split.oob_fill,
        arch=split.arch,
    )
    made = SplitLastDimTMATensorTile(tile._form, tile._address, tile._owner, tile._lease)
    made._split = split
    return made


def _split_violations(view: ArrayView, split: _Layout) -> Iterator[Violation]:
    found = [
        *per_side_violations(len(split.gmem_shape), "tile_shape", split.tile_shape),
        *per_side_violations(len(split.gmem_shape), "gmem_shape", split.gmem_shape),
    ]
    if found:
        yield from found
        return
    size, needed = math.prod(view.shape), math.prod(split.gmem_shape)
    if needed > size:
        yield Violation(
            "gmem_shape",
            split.gmem_shape,
            f"it has {needed} elements and the array {size}",
            "Pass extents that the array's memory holds",
        )
    if not is_contiguous(view):
        yield Violation(
            "array.strides",
            view.strides_bytes,
            "gmem_shape is laid over contiguous memory",
            "Use create_tma_tile, which honours strides",
        )
    if split.is_folded or split.row_major or split.fold_chunks != 1:
        yield from _fold_violations(split, view.element.itemsize)


def _fold_violations(split: _Layout, itemsize: int) -> Iterator[Violation]:
    if len(split.gmem_shape) != 3 or split.tile_shape[1] != 1 or split.fold_chunks < 2:
        yield Violation(
            "fold_chunks",
            split.fold_chunks,
            "it folds the 2 or more chunks of (rows, 1, depth) out of (rows, heads, depth), and "
            f"tile_shape is {split.tile_shape}",
            "Pass 1 and row_major=False, or a tile of one head",
        )
        return
    chunk, depth = split.chunk(itemsize), split.tile_shape[2]
    if split.fold_chunks * chunk != depth:
        yield Violation(
            "fold_chunks",
            split.fold_chunks,
            f"one instruction moves the whole depth of {depth} elements or one chunk of {chunk}",
            f"Pass {max(1, depth // chunk)}, and a depth of whole chunks",
        )
    if split.gmem_shape[2] % chunk:
        yield Violation(
            "gmem_shape[2]",
            split.gmem_shape[2],
            f"a folded map splits it into chunks of {chunk} elements",
            "Pass fold_chunks=1, which pads the last chunk",
        )
    if split.row_major:
        for name, rows in (
            ("gmem_shape", split.gmem_shape[0]),
            ("tile_shape", split.tile_shape[0]),
        ):
            if rows % _ATOM_ROWS:
                yield Violation(
                    f"{name}[0]",
                    rows,
                    f"row_major splits rows into groups of {_ATOM_ROWS}, and the rest would be out "
                    "of reach",
                    "Pass a multiple of 8, or row_major=False",
                )
