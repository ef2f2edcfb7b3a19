"""One tensor map over sequences of different lengths, clipped by the hardware at each one's end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import L2Promotion, OOBFill, Swizzle
from tmaasync.ragged.batch import refuse, running_sums
from tmaasync.tensormap import TensorMapSpec
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = ["RaggedTensorMap", "RaggedWork", "create_ragged_tensor_map"]

_MAX_RANK = 4
_INT32_LIMIT = 1 << 31
_DESCRIPTOR_BYTES = 256  # the map, max_length, and what aligns the struct to 128 bytes
_PER_DIMENSION = re.compile(r"(tile_shape|box_shape|shape|strides_bytes|array\.strides)\[(\d)\]\Z")


class RaggedWork(NamedTuple):
    """The tiles that cover a batch, in the order of the packed array; one entry per tile each.

    Attributes:
        sequences: Which sequence the tile belongs to.
        rows: Its first row within the sequence.
        coordinates: Where in the map it starts, one row of 32-bit numbers per tile: innermost
            first, as the device takes them, 0 along the dimensions beside the ragged one.
    """

    sequences: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    coordinates: npt.NDArray[np.int32]


class RaggedTensorMap:
    """A tensor map over a packed array of sequences, and the tile that one call moves.

    Made by `create_ragged_tensor_map`. One map serves loads and stores: what lies beyond the end of
    a sequence is filled with zeros by a load and dropped by a store, by TMA itself. Pass it to a
    kernel for a ``const __grid_constant__`` parameter of the type `cuda_type`. The array stays
    alive as long as the map.

    The map has one dimension more than the array. The ragged dimension of stride s is in it twice:
    outermost as a *cursor* over all rows, and in its own place as a *window* of ``max_length``
    rows. For row r of a sequence of length L that starts at row p, the cursor is p + L and the
    window max_length - L + r; together they reach row p + r and max_length rows more, which the
    map's address takes back: it lies ``max_length * s`` below the array. From r = L on the window
    is out of bounds. Addresses below the array or beyond the sequence are never formed from
    coordinates that are in bounds.

    Sources: the clipping of loads and stores, and loads through an address below the allocation,
    were measured on an H200 (docs/hardware.md).
    """

    __slots__ = ("_tile", "_view", "max_length", "ragged_dim")

    def __init__(
        self, view: ArrayView, tile: TMATensorTile, max_length: int, ragged_dim: int
    ) -> None:
        """Use `create_ragged_tensor_map`."""
        self._view = view
        self._tile = tile
        self.max_length = max_length
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
    def spec(self) -> TensorMapSpec:
        """What the 128 bytes say: cursor, then the array's dimensions with the window in place."""
        return self._tile.spec

    @property
    def descriptor(self) -> bytes:
        """What a kernel takes: the 128 bytes of the ``CUtensorMap``, then ``max_length``."""
        window = self.max_length.to_bytes(4, "little")
        return (self._tile.descriptor + window).ljust(_DESCRIPTOR_BYTES, b"\0")

    @property
    def cuda_type(self) -> str:
        """The map's type in CUDA C++; ``Kernel(types={"Packed": map})`` gives it a name."""
        shapes = [
            f"tmaasync::{kind}<{', '.join(map(str, sides))}>"
            for kind, sides in (("Shape", self.tile_shape), ("Box", self.box_shape))
        ]
        swizzle = self._tile.cuda_type.rpartition(", ")[2].removesuffix(">")
        arguments = [self.element.cuda_type, *shapes, swizzle, str(self.ragged_dim)]
        return f"tmaasync::RaggedTensorMap<{', '.join(arguments)}>"

    @property
    def element(self) -> Element:
        """The element type, as NumPy, the tensor map and the kernel name it."""
        return self._tile.element

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements that one call moves, one side per dimension of the array."""
        return self._tile.tile_shape[1:]

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Elements that one instruction moves, one side per dimension of the array."""
        return self._tile.box_shape[1:]

    @property
    def boxes_per_tile(self) -> int:
        """Instructions that one call issues."""
        return self._tile.boxes_per_tile

    @property
    def tile_bytes(self) -> int:
        """Bytes that a barrier must expect for a load, rows beyond the end included."""
        return self._tile.tile_bytes

    @property
    def smem_alignment(self) -> int:
        """Alignment in bytes that the tile needs in shared memory."""
        return self._tile.smem_alignment

    @property
    def total_rows(self) -> int:
        """Rows of the packed array, all sequences together."""
        return self._view.shape[self.ragged_dim]

    @property
    def array(self) -> object:
        """The array behind the map."""
        return self._view.owner

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
        """Whether the array is still where it was when the map was made."""
        return _arrays.current_address(self._view) == self._view.address

    def check_alive(self, argument: str = "map") -> None:
        """Check that the array is still where it was when the map was made.

        Raises:
            StaleTileError: It was freed, resized or moved since.
        """
        _arrays.require_current(self._view, argument)

    def rebind(self, array: object) -> RaggedTensorMap:
        """The same map over another array of the same shape, strides, type and device.

        Raises:
            TensorMapError: The array differs, or its address is no multiple of 16.
        """
        view = _arrays.view(array, dtype=self.element)
        if view[1:5] != self._view[1:5]:
            rule = f"the map was made for {self._view}"
            remedy = "Make a map of its own for it with create_ragged_tensor_map"
            raise TensorMapError((Violation("array", view, rule, remedy),))
        placed = _with_cursor(view, self.max_length, self.ragged_dim)
        tile = self._tile.rebind(placed)
        return RaggedTensorMap(view, tile, self.max_length, self.ragged_dim)

    # --- coordinates ----------------------------------------------------------------------------

    def load_coordinates(self, start: int, length: int, at: Sequence[int]) -> tuple[int, ...]:
        """Where in the map a tile of one sequence starts, outermost dimension first.

        As `spec.check_coordinates` takes it; the device's ``load_coordinates`` has it innermost
        first.

        Args:
            start: First row of the sequence in the packed array.
            length: Rows of the sequence.
            at: Where in the sequence the tile starts, one number per dimension of the array,
                outermost first; along the ragged one, in rows of the sequence.

        Raises:
            ArgumentError: The sequence is longer than ``max_length`` or leaves the array, or the
                tile starts in front of it.
            TensorMapError: The innermost coordinate is no multiple of 16 bytes.
        """
        return self._coordinates(start, length, at, store=False)

    def store_coordinates(self, start: int, length: int, at: Sequence[int]) -> tuple[int, ...]:
        """The same, which serves both ways, with the rules of stores: none may be negative."""
        return self._coordinates(start, length, at, store=True)

    def _coordinates(
        self, start: int, length: int, at: Sequence[int], *, store: bool
    ) -> tuple[int, ...]:
        refuse([*self._place_violations(start, length, at)])
        window = [*at]
        window[self.ragged_dim] += self.max_length - length
        placed = (start + length, *window)
        self.spec.check_coordinates(placed, store=store)
        return placed

    def _place_violations(self, start: int, length: int, at: Sequence[int]) -> Iterator[Violation]:
        if not 0 <= length <= self.max_length:
            rule = f"a sequence of this map has 0 to max_length, {self.max_length} rows"
            yield Violation("length", length, rule, f"Make the map with max_length={length}")
        if not 0 <= start <= self.total_rows - length:
            rule = f"with length {length} it leaves the packed array of {self.total_rows} rows"
            yield Violation("start", start, rule, "Pass the sum of the lengths before it")
        if len(at) != len(self.tile_shape):
            rule = f"the array has {len(self.tile_shape)} dimensions and needs a number for each"
            yield Violation("at", tuple(at), rule, "Pass one per dimension, outermost first")
        elif at[self.ragged_dim] < 0:
            rule = "the rows in front of a sequence belong to another one"
            yield Violation(f"at[{self.ragged_dim}]", at[self.ragged_dim], rule, "Start at 0")

    def work_list(self, lengths: object = None, *, cu_seqlens: object = None) -> RaggedWork:
        """Every tile that holds rows of a batch; sequences of no rows have none.

        Args:
            lengths: Rows of each sequence: a sequence of ints or an array of integers. One on a
                device is read, which waits for the device.
            cu_seqlens: In place of the lengths, their running sums: 0 first, the total last.

        Raises:
            ArgumentError: Both or neither are given, the first sum is not 0, sums decrease, a
                sequence is longer than ``max_length``, or they are more rows than the array has.
        """
        sums = running_sums(
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


def create_ragged_tensor_map(  # noqa: PLR0913 - what create_tma_tile takes, and the sequences
    array: object,
    tile_shape: Sequence[int],
    *,
    max_length: int | None = None,
    ragged_dim: int = 0,
    swizzle: Swizzle = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion = L2Promotion.B256,
    oob_fill: OOBFill = OOBFill.ZERO,
    dtype: object = None,
) -> RaggedTensorMap:
    """Describe a tile of sequences that lie one after the other in an array.

    Args:
        array: The packed array, of 2 to 4 dimensions: (total_rows, last), with heads and groups
            between the two, or with the rows further in. Its last dimension is contiguous; its
            other strides, in bytes, are multiples of 16.
        tile_shape: Elements per side, outermost first, one per dimension of the array.
        max_length: Rows of the longest sequence; by default the rows of the array.
        ragged_dim: The dimension of the array that the sequences share out; not the last.
        swizzle: As in `create_tma_tile`.
        box_shape: As in `create_tma_tile`.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: What a load writes beyond the end of a sequence: zero, or NaN for floating-point
            types.
        dtype: The element type, where the array cannot say it.

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
    dim = ragged_dim + view.ndim if ragged_dim < 0 else ragged_dim
    sides = tuple(tile_shape)
    boxes = None if box_shape is None else tuple(box_shape)
    _raise_if([*_array_violations(view, dim, sides, boxes)])
    window = view.shape[dim] if max_length is None else max_length
    _raise_if([*_window_violations(view, dim, sides[dim], window)])
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
        _raise_if(_in_terms_of_the_array(error.violations, dim))
        raise
    return RaggedTensorMap(view, tile, window, dim)


def _with_cursor(view: ArrayView, max_length: int, ragged_dim: int) -> ArrayView:
    """The array as the map sees it: see `RaggedTensorMap`."""
    stride = view.strides_bytes[ragged_dim]
    windowed = [*view.shape]
    windowed[ragged_dim] = max_length
    return view._replace(
        address=view.address - max_length * stride,
        # The cursor stands behind a sequence, so there is one place more than rows.
        shape=(view.shape[ragged_dim] + 1, *windowed),
        strides_bytes=(stride, *view.strides_bytes),
    )


# --- what a ragged map must be ----------------------------------------------------------------


def _raise_if(violations: Sequence[Violation]) -> None:
    if violations:
        raise TensorMapError(tuple(violations))


def _array_violations(
    view: ArrayView, dim: int, tile_shape: tuple[int, ...], box_shape: tuple[int, ...] | None
) -> Iterator[Violation]:
    rank = view.ndim
    if rank > _MAX_RANK:
        rule = "the map has one dimension more than the array, and TMA has five"
        yield Violation("array.shape", view.shape, rule, "Merge dimensions with reshape")
    if not 0 <= dim < rank - 1:
        rule = "sequences share out rows, and the last dimension is what one row holds"
        remedy = "Add a dimension behind it, of at least 16 bytes" if rank < 2 else "Use 0"
        yield Violation("ragged_dim", f"{dim} of {rank} dimensions", rule, remedy)
    for argument, sides in (("tile_shape", tile_shape), ("box_shape", box_shape)):
        if sides is not None and len(sides) != rank:
            rule = f"the array has {rank} dimensions and needs one number for each"
            yield Violation(argument, sides, rule, f"Pass {rank} numbers, outermost first")
    if view.is_empty:
        remedy = "An empty array has nothing to copy: skip the launch"
        yield Violation("array.shape", view.shape, "a map needs at least one element", remedy)
    if view.address % 16:
        remedy = "Copy the data to an aligned array, or slice it at a multiple of 16 bytes"
        yield Violation(
            "array's address", f"{view.address:#x}", "it must be a multiple of 16", remedy
        )


def _window_violations(
    view: ArrayView, dim: int, tile_rows: int, max_length: object
) -> Iterator[Violation]:
    if isinstance(max_length, bool) or not hasattr(max_length, "__index__"):
        rule, remedy = "it must be a positive integer", "Pass the rows of the longest sequence"
        yield Violation("max_length", repr(max_length), rule, remedy)
        return
    rows, longest = view.shape[dim], max_length.__index__()
    stride = view.strides_bytes[dim]
    if longest < 1:
        rule, remedy = "it must be a positive integer", "Pass the rows of the longest sequence"
        yield Violation("max_length", longest, rule, remedy)
    elif longest + tile_rows >= _INT32_LIMIT:
        rule = f"with a tile of {tile_rows} rows it leaves coordinates of 32 bits"
        yield Violation("max_length", longest, rule, f"Use {rows}, all rows of the array")
    elif longest * stride > view.address:
        rule = f"rows are {stride} bytes apart, and the map's address would lie below 0"
        yield Violation("max_length", longest, rule, f"Use {rows}, all rows of the array")
    if rows + 1 >= _INT32_LIMIT:
        rule = "TMA's coordinates are signed numbers of 32 bits"
        remedy = "Split the array into several, each with a map of its own"
        yield Violation(f"array.shape[{dim}]", rows, rule, remedy)


def _in_terms_of_the_array(violations: Sequence[Violation], dim: int) -> list[Violation]:
    """The same rules, said of the array's dimensions in place of the map's; each once."""
    told = [
        replace(
            violation,
            argument=_array_argument(violation.argument, dim),
            value=violation.value[1:] if isinstance(violation.value, tuple) else violation.value,
        )
        for violation in violations
        # The array's own address was checked; the map's can only be off with the row stride.
        if violation.argument != "address"
    ]
    return list(dict.fromkeys(told))


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
