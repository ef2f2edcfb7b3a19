"""Matrices by their layout, and how a product reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync.ops._results import empty_rows, padded_row_bytes

__all__ = ["Matrix", "Operand"]

_GRANULE_BYTES = 16


class Matrix(NamedTuple):
    """What a plan depends on: all of an `ArrayView` but its owner and its exact address."""

    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element: Element
    device: int | None
    starts_on_granule: bool
    owns_padding: bool = False  # what lies behind its rows, up to 16 bytes, is nobody else's

    @classmethod
    def of(cls, view: ArrayView) -> Matrix:
        """The layout of an array."""
        return cls(*view[1:5], view.address % _GRANULE_BYTES == 0)

    @property
    def transposed(self) -> Matrix:
        """The same memory with rows and columns exchanged."""
        return self._replace(shape=self.shape[::-1], strides_bytes=self.strides_bytes[::-1])

    def in_rows(self) -> Matrix | None:
        """The matrix as rows that TMA can reach, if it is; one row may have any stride."""
        (rows, columns), (row_bytes, item_bytes) = self.shape, self.strides_bytes
        if rows == 1:
            row_bytes = padded_row_bytes(columns, self.element)
        if columns == 1:
            item_bytes = self.element.itemsize
        is_dense = item_bytes == self.element.itemsize and self.starts_on_granule
        if not is_dense or row_bytes <= 0 or row_bytes % _GRANULE_BYTES:
            return None
        return self._replace(strides_bytes=(row_bytes, item_bytes))

    def in_stored_rows(self) -> Matrix | None:
        """The matrix as rows that TMA can write: it writes whole sectors (measured on an H200)."""
        ends_on_granule = self.shape[1] * self.element.itemsize % _GRANULE_BYTES == 0
        return self.in_rows() if ends_on_granule or self.owns_padding else None

    def over(self, view: ArrayView) -> ArrayView:
        """The view with this shape and these strides."""
        return view._replace(shape=self.shape, strides_bytes=self.strides_bytes)

    def repacked(self) -> Matrix:
        """What a copy into padded rows looks like."""
        row_bytes = padded_row_bytes(self.shape[1], self.element)
        strides = (row_bytes, self.element.itemsize)
        return self._replace(strides_bytes=strides, starts_on_granule=True)


@dataclass(frozen=True, slots=True)
class Operand:
    """How the kernel reads a matrix: as it is, transposed, or from a copy with padded rows."""

    rows: Matrix
    transposed: bool = False
    copied: bool = False

    @classmethod
    def of(cls, matrix: Matrix) -> Operand:
        """The first of the three that TMA can do."""
        for transposed in (False, True):
            rows = (matrix.transposed if transposed else matrix).in_rows()
            if rows is not None:
                return cls(rows, transposed)
        return cls(matrix.repacked(), copied=True)

    @classmethod
    def in_order(cls, matrix: Matrix) -> Operand:
        """As it is, if TMA can do that; else from a copy."""
        rows = matrix.in_rows()
        return cls(matrix.repacked(), copied=True) if rows is None else cls(rows)

    def copy(self, view: ArrayView, *, swapped: bool) -> ArrayView:
        """The copy to read instead."""
        owner: Any = view.owner
        # Bytes that the caller said are of another type are copied as what they are.
        part = empty_rows(view, self.rows.shape, _arrays.view(owner).element)
        part[...] = owner.T if swapped else owner
        return _arrays.view(part, dtype=view.element)
