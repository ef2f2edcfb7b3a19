"""One head of a packed array at a time: cursor and head are one dimension of the map."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._kinds import as_int, check_integers
from tmaasync._ragged.base import RaggedMap
from tmaasync._ragged.batch import MAX_ROWS
from tmaasync._ragged.rules import (
    address_violations,
    row_violations,
    sequence_violations,
    window_violations,
)
from tmaasync._tile.cut import is_positive_integer
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


class RaggedTMA3DTile(RaggedMap):
    """Rows of one head of a packed array (total_rows, heads, last) or (..., heads, groups, last).

    Made by `create_ragged_tma_3d_tile`. What `RaggedTensorMap` does, in one dimension less: where
    heads follow each other without a gap, cursor and head are one coordinate, ``(p + L) * heads +
    head`` for a sequence of L rows from row p on. The dimension saved lets one instruction move
    several chunks of columns, or reaches groups as well. In shared memory a tile lies as
    ``[chunks][rows][groups][chunk]``.
    """

    __slots__ = ("chunk_columns",)

    def __init__(
        self, view: ArrayView, tile: TMATensorTile, max_length: int, chunk_columns: int | None
    ) -> None:
        super().__init__(view, tile, max_length)
        self.chunk_columns = chunk_columns

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._view.shape))
        return (
            f"<RaggedTMA3DTile {self.rows} rows of {self.element} [{shape}] at "
            f"{self._view.address:#x}, sequences of up to {self.max_length}, {self.spec.swizzle}, "
            f"{self.tile_bytes} bytes, {self.boxes_per_tile} boxes>"
        )

    @property
    def cuda_type(self) -> str:
        """The map's type in CUDA C++."""
        return self._cuda_type("RaggedTMA3DTile", int(self.chunk_columns is not None))

    @property
    def heads(self) -> int:
        return self._view.shape[1]

    @property
    def rows(self) -> int:
        """Rows of a sequence that one tile spans."""
        return self._tile.tile_shape[1 if self.chunk_columns is None else 2]

    def _numbers(self) -> tuple[int, ...]:
        return (self.max_length, self.heads)

    def load_coordinates(
        self, start: int, length: int, row: int, head: int, column: int = 0
    ) -> tuple[int, ...]:
        """Return where in the map a tile starts, outermost dimension first, for loads and stores.

        Args:
            start: First row of the sequence in the packed array.
            length: Rows of the sequence, up to ``max_length``.
            row: First row of the tile in the sequence.
            head: Which head.
            column: First column; with ``chunk_columns`` a multiple of that.

        Raises:
            ArgumentError: The sequence is longer than ``max_length`` or leaves the array, the tile
                starts before it, or there is no head or chunk of
                that number.
            TensorMapError: The innermost coordinate is no multiple of 16 bytes.
        """
        total_rows = self._view.shape[0]
        check_integers(start=start, length=length, row=row, head=head, column=column)
        ArgumentError.raise_for(
            [
                *sequence_violations(start, length, total_rows, self.max_length),
                *row_violations("row", row),
                *self._head_violations(head, column),
            ]
        )
        merged, window = (start + length) * self.heads + head, self.max_length - length + row
        groups = (0,) * (self._view.ndim - 3)
        placed: tuple[int, ...] = (merged, window, *groups, column)
        if self.chunk_columns is not None:
            placed = (merged, column // self.chunk_columns, window, *groups, 0)
        self.spec.check_coordinates(placed, store=True)
        return placed

    def _head_violations(self, head: int, column: int) -> Iterator[Violation]:
        if not 0 <= head < self.heads:
            rule = f"the array has {self.heads} heads, and no bound stops another row's"
            yield Violation("head", head, rule, f"Use 0 to {self.heads - 1}")
        if self.chunk_columns is not None and column % self.chunk_columns:
            rule = f"an instruction starts at a chunk, every {self.chunk_columns} columns"
            yield Violation("column", column, rule, "Use 0, and all columns are moved")

    def store_coordinates(
        self, start: int, length: int, row: int, head: int, column: int = 0
    ) -> tuple[int, ...]:
        """Return the same as `load_coordinates`."""
        return self.load_coordinates(start, length, row, head, column)


def create_ragged_tma_3d_tile(  # noqa: PLR0913 - one per field of the tensor map
    array: object,
    rows: int,
    columns: int | None = None,
    *,
    chunk_columns: int | None = None,
    max_length: int | None = None,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    dtype: object = None,
) -> RaggedTMA3DTile:
    """Describe rows of one head of sequences that lie one after the other in an array.

    Args:
        array: The packed array: (total_rows, heads, last) or (total_rows, heads, groups, last).
            Heads follow each other without a gap: a row is as long as its heads together.
        rows: Rows of a sequence that one tile spans, with all their groups.
        columns: Columns that one tile spans; by default all.
        chunk_columns: Have one instruction move all columns, cut into chunks of this many that lie
            one after the other in shared memory. It divides ``columns`` and the last dimension.
        max_length: Rows of the longest sequence; by default ``rows``, for callers that describe
            the rest of a sequence from each tile on.
        swizzle: As in `create_tma_tile`.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: What a load writes beyond the end of a sequence.
        dtype: The element type, where the array cannot say it.

    Raises:
        TensorMapError: The map breaks rules of the hardware; every one is listed with a remedy.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> packed = np.zeros((149, 16, 128), np.float16)
    >>> tile = create_ragged_tma_3d_tile(packed, 64, chunk_columns=64, swizzle=Swizzle.B128)
    >>> tile.boxes_per_tile, tile.load_coordinates(43, 32, row=0, head=7)
    (1, (1207, 0, 32, 0))
    """
    view = _arrays.view(array, dtype=None if dtype is None else element(dtype))
    TensorMapError.raise_for(_array_violations(view))
    TensorMapError.raise_for(_side_violations(rows, columns, chunk_columns))
    rows, chunk_columns = as_int(rows), as_int(chunk_columns)
    window = rows if max_length is None else as_int(max_length)
    width = view.shape[-1] if columns is None else as_int(columns)
    TensorMapError.raise_for(
        [
            *window_violations(view, 0, rows, window),
            *_chunk_violations(view.shape[-1], width, chunk_columns),
        ]
    )
    groups = view.shape[2:-1]
    sides: tuple[int, ...] = (rows, *groups, width)
    if chunk_columns is not None:
        sides = (width // chunk_columns, rows, *groups, chunk_columns)
    tile = create_tma_tile(
        _merged(view, window, chunk_columns),
        (1, *sides),
        swizzle=swizzle,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
    )
    if chunk_columns is not None and tile.boxes_per_tile > 1:
        rule = f"one instruction moves all chunks, and the box would be {tile.tile_shape[1:]}"
        remedy = "Use sides of up to 256, and chunks no wider than the swizzle"
        TensorMapError.raise_for(
            [Violation("rows and chunk_columns", (rows, chunk_columns), rule, remedy)]
        )
    return RaggedTMA3DTile(view, tile, window, chunk_columns)


def _side_violations(rows: object, columns: object, chunk_columns: object) -> Iterator[Violation]:
    given = {"rows": rows, "columns": columns, "chunk_columns": chunk_columns}
    for argument, value in given.items():
        if not is_positive_integer(value) and (argument == "rows" or value is not None):
            remedy = "Pass the sides as two numbers, rows and columns"
            yield Violation(argument, repr(value), "it must be a positive integer", remedy)


def _merged(view: ArrayView, max_length: int, chunk_columns: int | None) -> ArrayView:
    """Return the array as the map has it: cursor and heads, (chunks,) window, (groups,) columns."""
    total_rows, heads = view.shape[:2]
    row_stride, head_stride = view.strides_bytes[:2]
    chunks: tuple[int, ...] = ()
    chunk_strides: tuple[int, ...] = ()
    last = view.shape[-1]
    if chunk_columns is not None:
        chunks, last = (last // chunk_columns,), chunk_columns
        chunk_strides = (chunk_columns * view.element.itemsize,)
    return view._replace(
        address=view.address - max_length * row_stride,
        shape=((total_rows + 1) * heads, *chunks, max_length, *view.shape[2:-1], last),
        strides_bytes=(head_stride, *chunk_strides, row_stride, *view.strides_bytes[2:]),
    )


def _array_violations(view: ArrayView) -> Iterator[Violation]:
    if view.ndim not in (3, 4):
        rule = "it must be (total_rows, heads, last) or (total_rows, heads, groups, last)"
        yield Violation("array.shape", view.shape, rule, "Reshape it")
        return
    yield from address_violations(view)
    (total_rows, heads), (row_stride, head_stride) = view.shape[:2], view.strides_bytes[:2]
    if total_rows > 1 and row_stride != heads * head_stride:
        rule = f"{heads} heads {head_stride} bytes apart must fill a row without a gap"
        remedy = "Use create_ragged_tensor_map, which honours strides"
        yield Violation("array.strides[0]", row_stride, rule, remedy)
    if view.is_empty:
        remedy = "An empty array has nothing to copy: skip the launch"
        yield Violation("array.shape", view.shape, "a map needs at least one element", remedy)
    if (total_rows + 1) * heads > MAX_ROWS:
        rule = "rows times heads is a coordinate, a signed number of 32 bits"
        remedy = "Use create_ragged_tensor_map, which counts heads apart"
        yield Violation("array.shape", view.shape, rule, remedy)


def _chunk_violations(last: int, columns: int, chunk_columns: int | None) -> Iterator[Violation]:
    if chunk_columns is None:
        return
    if chunk_columns < 1 or last % chunk_columns or columns % chunk_columns:
        rule = f"it must divide the columns of the tile, {columns}, and of the array, {last}"
        remedy = "Use 64 elements of 16 bits with Swizzle.B128, or leave it out"
        yield Violation("chunk_columns", chunk_columns, rule, remedy)
