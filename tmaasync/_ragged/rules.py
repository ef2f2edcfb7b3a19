"""The rules of every ragged map, and of every tile of a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync._arrays import ArrayView
from tmaasync._hardware import INT32_LIMIT, TMA_ALIGNMENT
from tmaasync._kinds import is_integer, shown
from tmaasync.errors import Violation


def address_violations(view: ArrayView) -> Iterator[Violation]:
    """Check the array's own address; the map's is ``max_length`` rows below."""
    if view.address % TMA_ALIGNMENT:
        rule = f"it must be a multiple of {TMA_ALIGNMENT}"
        remedy = (
            f"Copy the data to an aligned array, or slice it at a multiple of {TMA_ALIGNMENT} bytes"
        )
        yield Violation("array's address", f"{view.address:#x}", rule, remedy)


def window_violations(
    view: ArrayView, dim: int, tile_rows: int, max_length: object
) -> Iterator[Violation]:
    """Check that coordinates fit in 32 bits, and that the map's address is not below 0."""
    if not is_integer(max_length):
        rule, remedy = "it must be a positive integer", "Pass the rows of the longest sequence"
        yield Violation("max_length", shown(max_length), rule, remedy)
        return
    rows, longest = view.shape[dim], max_length.__index__()
    stride = view.strides_bytes[dim]
    if longest < 1:
        rule, remedy = "it must be a positive integer", "Pass the rows of the longest sequence"
        yield Violation("max_length", longest, rule, remedy)
    elif longest + tile_rows >= INT32_LIMIT:
        rule = f"with a tile of {tile_rows} rows it leaves coordinates of 32 bits"
        yield Violation("max_length", longest, rule, f"Use {rows}, all rows of the array")
    elif longest * stride > view.address:
        rule = f"rows are {stride} bytes apart, and the map's address would lie below 0"
        yield Violation("max_length", longest, rule, f"Use {rows}, all rows of the array")
    if rows + 1 >= INT32_LIMIT:
        rule = "TMA's coordinates are signed numbers of 32 bits"
        remedy = "Split the array into several, each with a map of its own"
        yield Violation(f"array.shape[{dim}]", rows, rule, remedy)


def sequence_violations(
    start: int, length: int, total_rows: int, max_length: int
) -> Iterator[Violation]:
    """Check that a sequence is no longer than the window and inside the array."""
    if not 0 <= length <= max_length:
        rule = f"a sequence of this map has 0 to max_length, {max_length} rows"
        yield Violation("length", length, rule, f"Make the map with max_length={length}")
    if not 0 <= start <= total_rows - length:
        rule = f"with length {length} it leaves the packed array of {total_rows} rows"
        yield Violation("start", start, rule, "Pass the sum of the lengths before it")


def row_violations(argument: str, row: int) -> Iterator[Violation]:
    """Check that a tile does not start before its sequence; it may start after the end."""
    if row < 0:
        rule = "the rows before a sequence belong to another one"
        yield Violation(argument, row, rule, "Start at 0")
