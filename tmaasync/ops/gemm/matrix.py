"""Matrices, or batches of them, by their layout, and how a product reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync.ops._copies import in_order
from tmaasync.ops._results import empty_rows, padded_row_bytes

__all__ = ["Matrix", "Operand"]

_GRANULE_BYTES = 16


class Matrix(NamedTuple):
    """What a plan depends on: all of an `ArrayView` but its owner and its exact address.

    A batch of matrices has a third dimension in front.
    """

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
        (*outer, rows, columns), (*steps, row_bytes, item_bytes) = self.shape, self.strides_bytes
        return self._replace(
            shape=(*outer, columns, rows), strides_bytes=(*steps, item_bytes, row_bytes)
        )

    @property
    def alone(self) -> Matrix:
        """The matrix itself, of a batch of one or one that is the same matrix again and again."""
        if len(self.shape) == 3 and (self.shape[0] == 1 or self.strides_bytes[0] == 0):
            return self._replace(shape=self.shape[1:], strides_bytes=self.strides_bytes[1:])
        return self

    def merged(self) -> Matrix | None:
        """All rows of a batch as one matrix, if each starts where the one before ends."""
        (batch, rows, columns), (step, row_bytes, item_bytes) = self.shape, self.strides_bytes
        if step != rows * row_bytes:
            return None
        shape, strides = (batch * rows, columns), (row_bytes, item_bytes)
        return self._replace(shape=shape, strides_bytes=strides)

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to behind the last, for strides that are not negative."""
        pairs = zip(self.shape, self.strides_bytes, strict=True)
        return sum((size - 1) * stride for size, stride in pairs) + self.element.itemsize

    @property
    def is_packed(self) -> bool:
        """Whether its elements lie one behind the other from a multiple of 16 bytes on."""
        return self.starts_on_granule and _arrays.is_contiguous(self)

    def in_rows(self) -> Matrix | None:
        """The matrix as rows that TMA can reach, if it is; one row may have any stride."""
        (*outer, rows, columns), (*steps, row_bytes, item_bytes) = self.shape, self.strides_bytes
        if rows == 1:
            row_bytes = padded_row_bytes(columns, self.element)
        if columns == 1:
            item_bytes = self.element.itemsize
        is_dense = item_bytes == self.element.itemsize and self.starts_on_granule
        if not is_dense or row_bytes <= 0 or row_bytes % _GRANULE_BYTES:
            return None
        # A batch of one may have any stride too.
        steps = [
            rows * row_bytes if size == 1 else step for size, step in zip(outer, steps, strict=True)
        ]
        if any(step <= 0 or step % _GRANULE_BYTES for step in steps):
            return None
        return self._replace(strides_bytes=(*steps, row_bytes, item_bytes))

    def in_stored_rows(self) -> Matrix | None:
        """The matrix as rows that TMA can write: it writes whole sectors (measured on an H200)."""
        ends_on_granule = self.shape[-1] * self.element.itemsize % _GRANULE_BYTES == 0
        return self.in_rows() if ends_on_granule or self.owns_padding else None

    def over(self, view: ArrayView) -> ArrayView:
        """The view with this shape and these strides."""
        return view._replace(shape=self.shape, strides_bytes=self.strides_bytes)

    def repacked(self) -> Matrix:
        """What a copy into padded rows looks like."""
        row_bytes = padded_row_bytes(self.shape[-1], self.element)
        strides = (self.shape[-2] * row_bytes, row_bytes, self.element.itemsize)
        return self._replace(strides_bytes=strides[-len(self.shape) :], starts_on_granule=True)


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
    def of_rows(cls, matrix: Matrix) -> Operand:
        """The same, where the kernel reads no transposed matrix."""
        rows = matrix.in_rows()
        return cls(matrix.repacked(), copied=True) if rows is None else cls(rows)

    @classmethod
    def of_k_rows(cls, matrix: Matrix, *, k_is_last: bool) -> Operand:
        """The same, where the kernel reads rows along K."""
        if k_is_last:
            return cls.of_rows(matrix)
        return replace(cls.of_rows(matrix.transposed), transposed=True)

    def copy(self, view: ArrayView, stream: int, *, swapped: bool) -> ArrayView:
        """The copy to read instead, made in the order of a stream.

        ``swapped``: the matrix that this stands for is the transpose of the view.
        """
        owner: Any = view.owner
        flips = swapped != self.transposed
        *outer, rows, columns = self.rows.shape
        shape = (*outer, columns, rows) if flips else self.rows.shape
        if view.ndim > len(shape):
            # A batch that was merged, or one that is the same matrix again and again.
            owner = owner.reshape(shape) if math.prod(view.shape) == math.prod(shape) else owner[0]
        with in_order(view.framework, view.device, stream):
            # Bytes that the caller said are of another type are copied as what they are.
            part = empty_rows(view, self.rows.shape, _arrays.view(owner).element)
            part[...] = owner.swapaxes(-1, -2) if flips else owner
        return _arrays.view(part, dtype=view.element)
