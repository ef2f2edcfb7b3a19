"""The layout of a split tile: its last side padded to whole chunks, or folded into one box."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._tile.cut import CUDA_SWIZZLE, per_side_violations
from tmaasync.errors import Violation
from tmaasync.modes import L2Promotion, OOBFill, Swizzle

__all__ = ["SplitLayout", "split_violations"]

_ATOM_ROWS = 8


@dataclass(frozen=True, slots=True)
class SplitLayout:
    """The arguments of `create_split_tma`; a folded tile has rows, heads and depth."""

    tile_shape: tuple[int, ...]
    gmem_shape: tuple[int, ...]
    swizzle: Swizzle
    fold_chunks: int
    row_major: bool
    l2_promotion: L2Promotion
    oob_fill: OOBFill

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


def split_violations(view: ArrayView, split: SplitLayout) -> Iterator[Violation]:
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


def _fold_violations(split: SplitLayout, itemsize: int) -> Iterator[Violation]:
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
