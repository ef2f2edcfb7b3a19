"""Lengths of the sequences of a batch, on the host or on the device, as the kernels take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._ragged.batch import (
    MAX_ROWS,
    BatchNames,
    check_flat_integers,
    checked_cu_seqlens,
    is_listed,
    one_of,
)
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import Backend, backend_of
from tmaasync.ops._allocation import int32_on_device

_USUAL_NAMES = BatchNames()


class Limits(NamedTuple):
    """Upper bounds that the arrays set; None where the lengths decide."""

    max_length: int | None
    total_rows: int | None


class CumulativeLengths(NamedTuple):
    """Lengths or cumulative lengths (cu_seqlens): checked in host memory, unchecked on the GPU."""

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
    ) -> CumulativeLengths:
        """Check the arguments; values on a device, which need a wait, only with ``check``."""
        name, values = one_of(lengths, cu_seqlens)
        argument = getattr(names, name)
        view = None if is_listed(values) else _arrays.view(values, argument=argument)
        is_on_device = view is not None and not view.is_on_host
        if view is not None and view.is_stand_in and not is_on_device:
            check_flat_integers(view.shape, view.element.dtype, argument)
            if not view.is_empty:  # there are no values to check
                return cls(name, values, view.shape[0] - 1, False, 0, 0)
            lengths, cu_seqlens = None, np.empty(0, np.int32)
        if view is not None and is_on_device:
            _check_on_device(argument, view, device, is_cumulative=name == "cu_seqlens")
        if check or not is_on_device:
            most = MAX_ROWS if limits.max_length is None else limits.max_length
            total = limits.total_rows
            cumulative = checked_cu_seqlens(
                lengths, cu_seqlens, max_length=most, total_rows=total, names=names
            )
            longest = int(np.diff(cumulative).max(initial=0))
            return cls(name, cumulative, cumulative.size - 1, False, int(cumulative[-1]), longest)
        size = view.shape[0] if view is not None else 0
        return cls(name, values, size - (name == "cu_seqlens"), True)

    @property
    def is_direct(self) -> bool:
        """Whether the kernel can read the caller's array."""
        return self.is_on_device and self.name == "cu_seqlens" and is_int32_in_place(self.values)

    def known(self, fact: str, argument: str, what: str) -> int:
        """Return the total or the longest, if that needs no wait for a device."""
        value: int | None = getattr(self, fact)
        if value is None:
            raise ArgumentError.broken(
                argument,
                "None",
                f"{self.name} lies on a device, where {what} cannot be known without waiting",
                f"Pass {argument}=, check=True, or {self.name} in host memory",
            )
        return value

    def on(self, backend: Backend, framework: str, stream: int) -> Any:
        """Return int32 cumulative lengths on the device, in the order of the stream.

        ``framework`` is the output's: the result is an array of the same library.
        """
        if backend.reads_host_memory:
            return self.values
        device, cumulative = backend.device, self.is_on_device and self.name == "lengths"
        return int32_on_device(self.values, framework, device, stream, cumulative=cumulative)


def is_int32_in_place(values: Any) -> bool:
    """Whether a kernel can read an array of cumulative lengths without a conversion."""
    view = _arrays.view(values)
    return view.element.dtype == np.int32 and _arrays.is_contiguous(view)


def _check_on_device(
    name: str, view: ArrayView, device: int | None, *, is_cumulative: bool
) -> None:
    found = []
    if view.device != device:
        where = backend_of(device).location
        remedy = "Move it there, or to host memory"
        rule = f"the arrays lie on {where}"
        found.append(Violation(f"{name}'s device", f"cuda:{view.device}", rule, remedy))
    if view.ndim != 1 or view.element.dtype.kind not in "iu":
        value = f"{view.element} {view.shape}"
        rule, remedy = "it must be a flat array of integers", "Pass int32 of one dimension"
        found.append(Violation(name, value, rule, remedy))
    elif view.is_empty and is_cumulative:
        rule = "it has one entry more than there are sequences"
        found.append(Violation(name, "empty", rule, "Put a 0 before the cumulative lengths"))
    ArgumentError.raise_for(found)
