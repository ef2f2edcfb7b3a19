"""Shared-memory offsets of a tile's 16-byte chunks, and bank conflicts of reading them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from tmaasync._hardware import SWIZZLE_CHUNK_BYTES, WARP_THREADS
from tmaasync._tile.cut import default_box
from tmaasync.modes import Swizzle
from tmaasync.swizzle import bank_words, tile_offset

CHUNKS_PER_LINE = 8  # 128 bytes, all banks once
_MATRIX_ROWS = 8


class Access(StrEnum):
    """Access pattern of a warp."""

    ROW = "row"
    """Every lane a chunk, along the rows."""

    ROW_ELEMENTS = "row-elements"
    """Every lane an element, along the rows."""

    COLUMN = "column"
    """Every lane an element, down a column."""

    COLUMN_CHUNKS = "column-chunks"
    """Every lane a chunk, down a column of them."""

    LDMATRIX = "ldmatrix"
    """Four matrices of 8 rows of a chunk."""

    CORE_MATRIX = "core-matrix"
    """One matrix of 8 rows of a chunk, as in an operand of wgmma."""

    @property
    def by_elements(self) -> bool:
        """True if a lane reads an element and not 16 bytes."""
        return self in (Access.ROW_ELEMENTS, Access.COLUMN)

    @property
    def by_matrices(self) -> bool:
        """True if the pattern reads eight rows at a time."""
        return self in (Access.LDMATRIX, Access.CORE_MATRIX)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of the tile, and the byte of shared memory at which it starts."""

    row: int
    number: int
    offset: int

    @property
    def name(self) -> str:
        return f"{self.row}.{self.number}"

    @property
    def line(self) -> int:
        """Number of the 128-byte line."""
        return self.offset // SWIZZLE_CHUNK_BYTES // CHUNKS_PER_LINE

    @property
    def column(self) -> int:
        """Number of the chunk within its line, which decides its four banks."""
        return self.offset // SWIZZLE_CHUNK_BYTES % CHUNKS_PER_LINE


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of reading the whole tile: accesses of a warp, and passes over the banks."""

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

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the offset of every element in bytes: (rows, columns)."""
        shape = (self.rows, self.columns)
        box = default_box(shape, 8 * self.itemsize, self.swizzle)
        return tile_offset((*np.indices(shape),), shape, box, self.itemsize, self.swizzle)

    def chunk_offsets(self) -> npt.NDArray[np.int64]:
        """Return the offset of every chunk: (rows, chunks of a row)."""
        return self.offsets()[:, :: SWIZZLE_CHUNK_BYTES // self.itemsize]

    def chunks(self) -> Iterator[Chunk]:
        """Yield all chunks, row by row."""
        for (row, number), offset in np.ndenumerate(self.chunk_offsets()):
            yield Chunk(row, number, int(offset))

    def accesses(self, how: Access) -> Iterator[list[int]]:
        """Yield the addresses of the lanes, access by access."""
        offsets = self.offsets() if how.by_elements else self.chunk_offsets()
        if how in (Access.COLUMN, Access.COLUMN_CHUNKS):
            for column in offsets.T:
                yield from _groups(column, WARP_THREADS)
        elif how.by_matrices:
            matrices = offsets.reshape(-1, _MATRIX_ROWS, offsets.shape[1]).swapaxes(1, 2)
            yield from _groups(matrices, WARP_THREADS if how is Access.LDMATRIX else _MATRIX_ROWS)
        else:
            yield from _groups(offsets, WARP_THREADS)

    def lane_bytes(self, how: Access) -> int:
        """Return the bytes that a lane reads at once."""
        return self.itemsize if how.by_elements else SWIZZLE_CHUNK_BYTES

    def cost(self, how: Access) -> Cost:
        """Return the cost of reading the whole tile."""
        words = [bank_words(lanes, self.lane_bytes(how)) for lanes in self.accesses(how)]
        passes = [phases.max(axis=1) for phases in words]
        conflicts = [int((each - 1).sum()) for each in passes]
        return Cost(
            lane_bytes=self.lane_bytes(how),
            accesses=len(words),
            passes=int(sum(each.sum() for each in passes)),
            conflicts=sum(conflicts),
            worst=max(conflicts),
        )


def _groups(offsets: npt.NDArray[np.int64], size: int) -> Iterator[list[int]]:
    addresses = offsets.ravel().tolist()
    for start in range(0, len(addresses), size):
        yield addresses[start : start + size]
