"""Memory of a slice, as a kernel reaches it by pointer: address, bytes, alignment, contiguity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Self

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._kinds import is_one_of, shown
from tmaasync.errors import ArgumentError, Violation

__all__ = ["ArrayAccess", "bulk_violations"]

Mode = Literal["r", "w", "rw"]

_MAX_ALIGNMENT = 4096  # nothing asks for more


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayAccess:
    """An array, or a slice of one, as the memory that a kernel reaches through its pointer.

    Made by `from_array`. Shape and strides run outermost dimension first.

    Attributes:
        address: The address of the element with all indices zero: the kernel's pointer.
        extent_bytes: From the lowest byte of the slice to the end of its highest.
        size_bytes: Bytes of its elements: less than ``extent_bytes`` if there are gaps.
        run_bytes: Contiguous bytes from ``address`` on: all, or one row, or less.
        alignment: The largest power of two, up to 4096, that divides the address.
        shape: Elements along each dimension.
        strides_bytes: Bytes from one index to the next along each dimension.

    >>> import numpy as np
    >>> image = np.zeros((32, 64), np.float32)
    >>> rows, columns = ArrayAccess.from_array(image[4:8]), ArrayAccess.from_array(image[:, 4:12])
    >>> rows.size_bytes, rows.is_contiguous, columns.run_bytes, columns.is_contiguous
    (1024, True, 32, False)
    >>> rows.check_bulk()
    >>> columns.check_bulk()  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    tmaasync.errors.ArgumentError: array.strides is (256, 4); a bulk copy moves contiguous memory.
    Use create_tma_tile, which honours strides.
    """

    address: int
    extent_bytes: int
    size_bytes: int
    run_bytes: int
    alignment: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    _view: ArrayView = field(repr=False)

    @classmethod
    def from_array(cls, array: object, mode: Mode = "r", *, argument: str = "array") -> Self:
        """Look at an array or a slice of one, of any framework.

        Args:
            array: The slice.
            mode: What the kernel does with it: ``"r"``, ``"w"`` or ``"rw"``.
            argument: Its name in errors.

        Raises:
            ArgumentError: The array is read only and ``mode`` has a ``w``, or ``mode`` is
                none of the three.
            ArrayTypeError: Not an array, or not of a type that TMA can read.
        """
        if not is_one_of(mode, ("r", "w", "rw")):
            rule = "an access reads, writes, or does both"
            remedy = "Pass 'r', 'w' or 'rw'"
            raise ArgumentError.broken("mode", shown(mode), rule, remedy)
        view = _arrays.view(array, argument=argument)
        if "w" in mode:
            _arrays.require_writable(view, argument)
        low, high = view.byte_bounds
        return cls(
            address=view.address,
            extent_bytes=high - low,
            size_bytes=math.prod(view.shape) * view.element.itemsize,
            run_bytes=_run_bytes(view),
            alignment=math.gcd(view.address, _MAX_ALIGNMENT),
            shape=view.shape,
            strides_bytes=view.strides_bytes,
            _view=view,
        )

    @property
    def is_contiguous(self) -> bool:
        """True if the elements lie one after the other, the innermost dimension fastest."""
        return _arrays.is_contiguous(self._view)

    def check_bulk(self) -> None:
        """Check that a bulk copy without a tensor map can move the slice (``tma_load_1d``).

        Raises:
            ArgumentError: It is not contiguous, or its address or size is no multiple of 16 bytes;
                every broken rule is listed.
        """
        broken = list(bulk_violations(self._view))
        if self.size_bytes % TMA_ALIGNMENT:
            broken.append(
                Violation(
                    "array's size",
                    f"{self.size_bytes} bytes",
                    f"it must be a multiple of {TMA_ALIGNMENT}: the chip drops the rest",
                    f"Slice {self.size_bytes // TMA_ALIGNMENT * TMA_ALIGNMENT} bytes, and move "
                    "the rest otherwise",
                )
            )
        ArgumentError.raise_for(broken)


def _run_bytes(view: ArrayView) -> int:
    run = view.element.itemsize
    if view.is_empty:
        return 0
    for size, stride in zip(reversed(view.shape), reversed(view.strides_bytes), strict=True):
        if size == 1:
            continue
        if stride != run:
            break
        run *= size
    return run


def bulk_violations(view: ArrayView) -> Iterator[Violation]:
    """Yield why bulk copies without a tensor map cannot move an array, whatever their size."""
    if not _arrays.is_contiguous(view):
        yield Violation(
            "array.strides",
            view.strides_bytes,
            "a bulk copy moves contiguous memory",
            "Use create_tma_tile, which honours strides",
        )
    if view.address % TMA_ALIGNMENT:
        yield Violation(
            "array's address",
            f"{view.address:#x}",
            f"it must be a multiple of {TMA_ALIGNMENT}",
            f"Slice the array at a multiple of {TMA_ALIGNMENT} bytes",
        )
