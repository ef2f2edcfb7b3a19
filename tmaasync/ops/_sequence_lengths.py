"""Lengths of the sequences of a batch, on the host or on the device, as the kernels take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._ragged.batch import MAX_ROWS, BatchNames, checked_sums, one_of
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._allocation import in_order

__all__ = ["Limits", "Sums"]


_USUAL_NAMES = BatchNames()


class Limits(NamedTuple):
    """Most rows that the arrays allow; None where the lengths decide."""

    max_length: int | None
    total_rows: int | None


class Sums(NamedTuple):
    """Lengths or their running sums: checked in host memory, or unchecked on the device."""

    name: str
    values: Any
    batch: int
    is_on_device: bool
    total: int | None = None
    longest: int | None = None

    @classmethod
    def of(
        cls,
        lengths: Any,
        cu_seqlens: Any,
        device: int | None,
        limits: Limits,
        *,
        check: bool,
        names: BatchNames = _USUAL_NAMES,
    ) -> Sums:
        """Check what the caller gave, as far as that needs no wait unless ``check``.

        Args:
            lengths: Rows of each sequence, or None.
            cu_seqlens: Their running sums, or None.
            device: That of the arrays.
            limits: What the arrays allow.
            check: Whether to read lengths on a device, too.
            names: Of the caller's arguments, for error messages.

        Raises:
            ArgumentError: Both or neither are given, or they describe no such batch.
        """
        name, values = one_of(lengths, cu_seqlens)
        argument = getattr(names, name)
        view = None if isinstance(values, list | tuple) else _arrays.view(values, argument=argument)
        is_on_device = view is not None and view.device is not None
        if view is not None and is_on_device:
            _check_on_device(argument, view, device, is_sums=name == "cu_seqlens")
        if check or not is_on_device:
            most = MAX_ROWS if limits.max_length is None else limits.max_length
            total = limits.total_rows
            sums = checked_sums(lengths, cu_seqlens, max_length=most, total_rows=total, names=names)
            longest = int(np.diff(sums).max(initial=0))
            return cls(name, sums, sums.size - 1, False, int(sums[-1]), longest)
        size = view.shape[0] if view is not None else 0
        return cls(name, values, size - (name == "cu_seqlens"), True)

    @property
    def is_direct(self) -> bool:
        """Whether the kernel can read the caller's array."""
        if not self.is_on_device or self.name != "cu_seqlens":
            return False
        view = _arrays.view(self.values)
        return view.element.dtype == np.int32 and _arrays.is_contiguous(view)

    def known(self, fact: str, argument: str, what: str) -> int:
        """Return the total or the longest, if that needs no wait for a device."""
        value: int | None = getattr(self, fact)
        if value is None:
            raise ArgumentError(
                f"{argument} is None; {self.name} lies on a device, where {what} cannot be known "
                f"without waiting. Pass {argument}=, check=True, or {self.name} in host memory."
            )
        return value

    def on(self, device: int | None, stream: int) -> Any:
        """Return running sums of 32 bits on the arrays' device, in the order of the stream."""
        if device is None:
            return self.values
        import cupy

        with in_order("cupy", device, stream):
            if not self.is_on_device:
                return cupy.asarray(self.values)
            values = cupy.from_dlpack(self.values)
            if self.name == "cu_seqlens":
                return cupy.ascontiguousarray(values.astype(cupy.int32, copy=False))
            sums = cupy.zeros(self.batch + 1, cupy.int32)
            sums[1:] = cupy.cumsum(values, dtype=cupy.int32)
            return sums


def _check_on_device(name: str, view: ArrayView, device: int | None, *, is_sums: bool) -> None:
    """Check all but the values."""
    found = []
    if view.device != device:
        place = "the host" if device is None else f"cuda:{device}"
        remedy = "Move it there, or to host memory"
        rule = f"the arrays lie on {place}"
        found.append(Violation(f"{name}'s device", f"cuda:{view.device}", rule, remedy))
    if view.ndim != 1 or view.element.dtype.kind not in "iu":
        value = f"{view.element} {view.shape}"
        rule, remedy = "it must be a flat array of integers", "Pass int32 of one dimension"
        found.append(Violation(name, value, rule, remedy))
    elif view.is_empty and is_sums:
        rule = "it has one entry more than there are sequences"
        found.append(Violation(name, "empty", rule, "Put a 0 in front of the running sums"))
    ArgumentError.raise_for(found)
