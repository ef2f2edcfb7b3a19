"""Packed sequences of different lengths: one tensor map that TMA clips at each sequence's end.

A packed array holds sequences back to back along its ragged dimension. The map has that dimension
twice: as a *window* of ``max_length`` rows in its original position, and as a *cursor* over all
rows, outermost. Coordinates of row r in a sequence of L rows that starts at row p:

| field of the map | value | effect |
|---|---|---|
| cursor | p + L | the window holds no row after the sequence |
| window | ``max_length`` - L + r | rows from L on are out of bounds |
| address | ``max_length`` rows below the array | cursor and window together reach row p + r |

| row of the tile | a load | a store, a reduction |
|---|---|---|
| 0 <= r < L | brings row p + r | writes row p + r |
| r >= L | writes fill, which the barrier counts | is dropped |
| r < 0 | rejected: the row belongs to the previous sequence | rejected |

| factory | coordinates | class |
|---|---|---|
| `create_ragged_tensor_map` | the array's coordinates, and the cursor | `RaggedTensorMap` |
| `create_ragged_tma_3d_tile` | heads merged with the cursor | `RaggedTMA3DTile` |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._kinds import as_int, check_integers, not_sequences_of_integers
from tmaasync._ragged.base import RaggedMap
from tmaasync._ragged.batch import cumulative_lengths
from tmaasync._ragged.heads import RaggedTMA3DTile, create_ragged_tma_3d_tile
from tmaasync._ragged.rules import (
    address_violations,
    row_violations,
    sequence_violations,
    window_violations,
)
from tmaasync._tile.argument import view_in_place
from tmaasync._tile.cut import per_side_violations, sides_of
from tmaasync._tile.form import rebind_violations
from tmaasync.errors import ArgumentError, TensorMapError, Violation
from tmaasync.modes import (
    L2Promotion,
    L2PromotionName,
    OOBFill,
    OOBFillName,
    Swizzle,
    SwizzleName,
)
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = [
    "RaggedMap",
    "RaggedTMA3DTile",
    "RaggedTensorMap",
    "RaggedWork",
    "create_ragged_tensor_map",
    "create_ragged_tma_3d_tile",
    "cumulative_lengths",
]

_MAX_RANK = 4
_PER_DIMENSION = re.compile(r"(tile_shape|box_shape|shape|strides_bytes|array\.strides)\[(\d)\]\Z")


class RaggedWork(NamedTuple):
    """The tiles that cover a batch, in the order of the packed array; one entry per tile.

    Attributes:
        sequences: The index of the tile's sequence.
        rows: The tile's first row within the sequence.
        coordinates: The tile's start in the map, one row of 32-bit numbers per tile: innermost
            first, as on the device, and 0 along the array's other dimensions.
    """

    sequences: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    coordinates: npt.NDArray[np.int32]


class RaggedTensorMap(RaggedMap):
    """A tensor map over a packed array of sequences, and the tile that one call moves.

    Made by `create_ragged_tensor_map`. One map serves loads and stores. Beyond the end of a
    sequence TMA itself fills loads with zeros and drops stores. Pass the map to a kernel for a
    ``const __grid_constant__`` parameter of the type `cuda_type`. The map keeps the array alive.

    The map has one dimension more than the array. The ragged dimension, of stride s, appears twice:
    outermost as a *cursor* over all rows, and in its own position as a *window* of ``max_length``
    rows. For row r of a sequence of length L that starts at row p, the cursor is p + L and the
    window is max_length - L + r. Their sum is row p + r plus max_length rows. The map's address
    compensates: it lies ``max_length * s`` below the array. From r = L on the window is out of
    bounds. No in-bounds coordinates give an address below the array or beyond the sequence.

    Sources: the clipping of loads and stores, and loads through an address below the allocation,
    were measured on an H200 (docs/hardware.md).
    """

    __slots__ = ("ragged_dim",)

    def __init__(
        self, view: ArrayView, tile: TMATensorTile, max_length: int, ragged_dim: int
    ) -> None:
        """Use `create_ragged_tensor_map`."""
        super().__init__(view, tile, max_length)
        self.ragged_dim = ragged_dim

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._view.shape))
        sides = "x".join(map(str, self.tile_shape))
        return (
            f"<RaggedTensorMap {sides} of {self.element} [{shape}] at {self._view.address:#x}, "
            f"sequences of up to {self.max_length} along dimension {self.ragged_dim}, "
            f"{self.spec.swizzle}, {self.tile_bytes} bytes>"
        )

    @property
    def cuda_type(self) -> str:
        """The map's type in CUDA C++."""
        return self._cuda_type("RaggedTensorMap", self.ragged_dim)

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements that one call moves, one side per dimension of the array."""
        return self._tile.tile_shape[1:]

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Elements that one instruction moves, one side per dimension of the array."""
        return self._tile.box_shape[1:]

    @property
    def total_rows(self) -> int:
        """The number of rows of the packed array."""
        return self._view.shape[self.ragged_dim]

    def rebind(self, array: object) -> RaggedTensorMap:
        """Return the same map over another array of the same shape, strides, type and device.

        Raises:
            TensorMapError: The array differs, or its address is no multiple of 16.
        """
        view = view_in_place(array, self.array, self.element, "map")
        if view[1:5] != self._view[1:5]:
            raise TensorMapError.of(
                rebind_violations(self._view, view, "map", "create_ragged_tensor_map")
            )
        placed = _with_cursor(view, self.max_length, self.ragged_dim)
        tile = self._tile.rebind(placed)
        return RaggedTensorMap(view, tile, self.max_length, self.ragged_dim)

    # --- coordinates ----------------------------------------------------------------------------

    def load_coordinates(self, start: int, length: int, at: Sequence[int]) -> tuple[int, ...]:
        """Return the map coordinates at which a tile of one sequence starts, outermost first.

        `spec.check_coordinates` takes this order; the device's ``load_coordinates`` uses innermost
        first.

        Args:
            start: First row of the sequence in the packed array.
            length: Number of rows of the sequence.
            at: The tile's start in the sequence, one number per dimension of the array, outermost
                first; along the ragged dimension it counts rows of the sequence.

        Raises:
            ArgumentError: The sequence is longer than ``max_length`` or leaves the array, or the
                tile starts before it.
            TensorMapError: The innermost coordinate is no multiple of 16 bytes.
        """
        return self._coordinates(start, length, at, store=False)

    def store_coordinates(self, start: int, length: int, at: Sequence[int]) -> tuple[int, ...]:
        """Return the same coordinates, checked for a store: none may be negative."""
        return self._coordinates(start, length, at, store=True)

    def _coordinates(
        self, start: int, length: int, at: Sequence[int], *, store: bool
    ) -> tuple[int, ...]:
        check_integers(start=start, length=length)
        ArgumentError.raise_for(not_sequences_of_integers(at=at))
        ArgumentError.raise_for(
            [
                *sequence_violations(start, length, self.total_rows, self.max_length),
                *self._start_violations(at),
            ]
        )
        window = [*at]
        window[self.ragged_dim] += self.max_length - length
        placed = (start + length, *window)
        self.spec.check_coordinates(placed, store=store)
        return placed

    def _start_violations(self, at: Sequence[int]) -> Iterator[Violation]:
        if len(at) != len(self.tile_shape):
            rule = f"the array has {len(self.tile_shape)} dimensions and needs a number for each"
            yield Violation("at", tuple(at), rule, "Pass one per dimension, outermost first")
        else:
            yield from row_violations(f"at[{self.ragged_dim}]", at[self.ragged_dim])

    def work_list(self, lengths: object = None, *, cu_seqlens: object = None) -> RaggedWork:
        """List the tiles that cover a batch; an empty sequence has no tiles.

        Args:
            lengths: Rows of each sequence: a sequence of ints or an array of integers. Reading an
                array on a device waits for the device.
            cu_seqlens: The cumulative lengths instead of ``lengths``: 0 first, the total last.

        Raises:
            ArgumentError: Both or neither are given, the first sum is not 0, sums decrease, a
                sequence is longer than ``max_length``, or the total exceeds the array's rows.
        """
        sums = cumulative_lengths(
            lengths, cu_seqlens, max_length=self.max_length, total_rows=self.total_rows
        )
        each = np.diff(sums)
        rows_per_tile = self.tile_shape[self.ragged_dim]
        tiles = -(-each // rows_per_tile)
        sequences = np.repeat(np.arange(each.size, dtype=np.int32), tiles)
        first_tile = np.cumsum(tiles) - tiles
        rows = (np.arange(sequences.size) - first_tile[sequences]) * rows_per_tile
        rank = len(self.tile_shape)
        coordinates = np.zeros((sequences.size, rank + 1), np.int32)
        coordinates[:, rank - 1 - self.ragged_dim] = self.max_length - each[sequences] + rows
        coordinates[:, rank] = sums[1:][sequences]
        return RaggedWork(sequences, rows.astype(np.int32), coordinates)


def create_ragged_tensor_map(  # noqa: PLR0913 - create_tma_tile's arguments, and the sequences
    array: object,
    tile_shape: Sequence[int],
    *,
    max_length: int | None = None,
    ragged_dim: int = 0,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    dtype: object = None,
) -> RaggedTensorMap:
    """Describe a tile of sequences that are packed back to back in an array.

    Args:
        array: The packed array, of 2 to 4 dimensions: (total_rows, last), optionally with heads
            and groups between the two, or before the rows. Its last dimension is contiguous; its
            other strides, in bytes, are multiples of 16.
        tile_shape: Elements per side, outermost first, one per dimension of the array.
        max_length: Rows of the longest sequence; by default the array's rows.
        ragged_dim: The dimension along which the sequences are packed; not the last.
        swizzle: As in `create_tma_tile`.
        box_shape: As in `create_tma_tile`.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: What a load writes beyond the end of a sequence: zero, or NaN for floating-point
            types.
        dtype: The element type, where the array does not state it.

    Raises:
        TensorMapError: The map breaks rules of the hardware; every one is listed with a remedy.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> packed = np.zeros((149, 16, 128), np.float32)  # sequences of 43, 32, 10 and 64 rows
    >>> map_ = create_ragged_tensor_map(packed, (24, 1, 64), max_length=64)
    >>> map_.store_coordinates(0, 43, (24, 7, 0))  # rows 24 to 42 of the first; 43 to 47 fall out
    (43, 45, 7, 0)
    """
    view = _arrays.view(array, dtype=None if dtype is None else element(dtype))
    check_integers(ragged_dim=ragged_dim)
    dim = ragged_dim + view.ndim if ragged_dim < 0 else ragged_dim
    sides = sides_of("tile_shape", tile_shape)
    boxes = None if box_shape is None else sides_of("box_shape", box_shape)
    TensorMapError.raise_for(_array_violations(view, ragged_dim, sides, boxes))
    window = view.shape[dim] if max_length is None else as_int(max_length)
    TensorMapError.raise_for(window_violations(view, dim, sides[dim], window))
    try:
        tile = create_tma_tile(
            _with_cursor(view, window, dim),
            (1, *sides),
            swizzle=swizzle,
            box_shape=None if boxes is None else (1, *boxes),
            l2_promotion=l2_promotion,
            oob_fill=oob_fill,
        )
    except TensorMapError as error:
        TensorMapError.raise_for(_in_terms_of_the_array(error.violations, dim))
        raise
    return RaggedTensorMap(view, tile, window, dim)


def _with_cursor(view: ArrayView, max_length: int, ragged_dim: int) -> ArrayView:
    """Return the array with a cursor and a window dimension, as `RaggedTensorMap` explains."""
    stride = view.strides_bytes[ragged_dim]
    windowed = [*view.shape]
    windowed[ragged_dim] = max_length
    return view._replace(
        address=view.address - max_length * stride,
        # The cursor points after a sequence, so it has one value more than there are rows.
        shape=(view.shape[ragged_dim] + 1, *windowed),
        strides_bytes=(stride, *view.strides_bytes),
    )


# --- rules of a ragged map --------------------------------------------------------------------


def _array_violations(
    view: ArrayView, ragged_dim: int, tile_shape: tuple[int, ...], box_shape: tuple[int, ...] | None
) -> Iterator[Violation]:
    rank = view.ndim
    if rank > _MAX_RANK:
        rule = "the map has one dimension more than the array, and TMA has five"
        yield Violation("array.shape", view.shape, rule, "Merge dimensions with reshape")
    if ragged_dim == -1 or not -rank <= ragged_dim < rank - 1:
        rule = "sequences share out rows, and the last dimension is what one row holds"
        remedy = "Add a dimension after it, of at least 16 bytes" if rank < 2 else "Use 0"
        yield Violation("ragged_dim", f"{ragged_dim} of {rank} dimensions", rule, remedy)
    for argument, sides in (("tile_shape", tile_shape), ("box_shape", box_shape)):
        if sides is not None:
            yield from per_side_violations(rank, argument, sides)
    if view.is_empty:
        remedy = "An empty array has nothing to copy: skip the launch"
        yield Violation("array.shape", view.shape, "a map needs at least one element", remedy)
    yield from address_violations(view)


def _in_terms_of_the_array(violations: Sequence[Violation], dim: int) -> list[Violation]:
    """Return the same violations in terms of the array's dimensions, each once."""
    renamed = [
        replace(
            violation,
            argument=_array_argument(violation.argument, dim),
            value=violation.value[1:] if isinstance(violation.value, tuple) else violation.value,
        )
        for violation in violations
        # The array's own address was checked, so a misaligned map address means a bad row stride.
        if violation.argument != "address"
    ]
    return list(dict.fromkeys(renamed))


def _array_argument(argument: str, dim: int) -> str:
    found = _PER_DIMENSION.match(argument)
    if found is None:
        return argument
    name, index = found[1], int(found[2])
    of_array = dim if index == 0 else index - 1
    if name == "shape" and index == dim + 1:
        return "max_length"
    name = {"shape": "array.shape", "strides_bytes": "array.strides"}.get(name, name)
    return f"{name}[{of_array}]"
