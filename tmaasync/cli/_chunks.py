"""Where the 16-byte chunks of a tile lie in shared memory, and what reading it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tmaasync.modes import Swizzle
from tmaasync.swizzle import bank_conflicts, tile_offset
from tmaasync.tile.cut import default_box

__all__ = ["CHUNKS_PER_LINE", "CHUNK_BYTES", "Access", "Chunk", "Cost", "Layout"]

CHUNK_BYTES = 16
CHUNKS_PER_LINE = 8  # 128 bytes, all banks once
_LANES = 32
_MATRIX_ROWS = 8
_BANK_BYTES = 4


class Access(StrEnum):
    """How a warp reads a tile."""

    ROW = "row"
    """Every lane a chunk, along the rows."""

    COLUMN = "column"
    """Every lane an element, down a column."""

    LDMATRIX = "ldmatrix"
    """Four matrices of 8 rows of a chunk."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of the tile, and the byte of shared memory at which it starts."""

    row: int
    number: int
    offset: int

    @property
    def name(self) -> str:
        """Its row, and its number within the row."""
        return f"{self.row}.{self.number}"

    @property
    def line(self) -> int:
        """Which 128 bytes it lies in."""
        return self.offset // CHUNK_BYTES // CHUNKS_PER_LINE

    @property
    def place(self) -> int:
        """Which chunk of the line it is: its four banks."""
        return self.offset // CHUNK_BYTES % CHUNKS_PER_LINE


@dataclass(frozen=True, slots=True)
class Cost:
    """What it takes to read the whole tile: accesses of a warp, and passes over the banks."""

    lane_bytes: int
    accesses: int
    passes: int
    conflicts: int
    worst: int
    """Conflicts of the worst single access."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A tile of rows and columns of elements under a swizzle."""

    rows: int
    columns: int
    itemsize: int
    swizzle: Swizzle

    def offset(self, row: int, column: int) -> int:
        """Where an element lies, in bytes."""
        shape = (self.rows, self.columns)
        box = default_box(shape, self.itemsize, self.swizzle)
        return tile_offset((row, column), shape, box, self.itemsize, self.swizzle)

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, row by row."""
        step = CHUNK_BYTES // self.itemsize
        for row in range(self.rows):
            for number in range(self.columns // step):
                yield Chunk(row, number, self.offset(row, number * step))

    def accesses(self, how: Access) -> Iterator[list[int]]:
        """The addresses of the lanes, access by access."""
        if how is Access.ROW:
            yield from _groups([chunk.offset for chunk in self.chunks()])
        elif how is Access.COLUMN:
            for column in range(self.columns):
                yield from _groups([self.offset(row, column) for row in range(self.rows)])
        else:
            yield from _groups(list(self._matrix_rows()))

    def _matrix_rows(self) -> Iterator[int]:
        for first in range(0, self.rows, _MATRIX_ROWS):
            for column in range(0, self.columns, CHUNK_BYTES // self.itemsize):
                yield from (self.offset(first + row, column) for row in range(_MATRIX_ROWS))

    def cost(self, how: Access) -> Cost:
        """What reading the whole tile takes."""
        lane_bytes = self.itemsize if how is Access.COLUMN else CHUNK_BYTES
        accesses = list(self.accesses(how))
        conflicts = [bank_conflicts(np.array(lanes), lane_bytes) for lanes in accesses]
        at_once = _LANES * _BANK_BYTES // max(lane_bytes, _BANK_BYTES)
        least = sum(-(-len(lanes) // at_once) for lanes in accesses)
        return Cost(
            lane_bytes=lane_bytes,
            accesses=len(accesses),
            passes=least + sum(conflicts),
            conflicts=sum(conflicts),
            worst=max(conflicts),
        )


def _groups(addresses: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(addresses), _LANES):
        yield list(addresses[start : start + _LANES])
