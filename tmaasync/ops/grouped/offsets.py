"""Where groups end: on the host, checked, or on the device, as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._ragged.batch import on_host, refuse
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._copies import in_order

__all__ = ["Offsets"]


class Offsets(NamedTuple):
    """The running sums of the groups' rows, one for each group."""

    values: Any
    is_on_device: bool

    @classmethod
    def of(cls, values: Any, groups: int, total_rows: int, device: int | None) -> Offsets:
        """What the caller gave, for so many groups of arrays with so many rows.

        Raises:
            ArgumentError: They describe no such groups.
        """
        view = (
            None if isinstance(values, list | tuple) else _arrays.view(values, argument="offsets")
        )
        if view is not None and view.device is not None:
            _check_layout(view.shape, view.element, groups)
            _check_device(view, device)
            return cls(values, True)
        ends = on_host(values, "offsets")
        _check_layout(ends.shape, ends.dtype, groups)
        _check_order(ends, total_rows)
        return cls(np.ascontiguousarray(ends, np.int32), False)

    @property
    def is_in_place(self) -> bool:
        """Whether the kernel can read them where the caller has them."""
        if not self.is_on_device:
            return False
        view = _arrays.view(self.values)
        return view.element.dtype == np.int32 and _arrays.is_contiguous(view)

    def on(self, device: int | None, stream: int) -> Any:
        """An array of 32-bit integers where the operands are, in order on the stream."""
        if device is None or self.is_in_place:
            return self.values
        import cupy

        with in_order("cupy", device, stream):
            if not self.is_on_device:
                return cupy.asarray(self.values)
            return cupy.ascontiguousarray(cupy.from_dlpack(self.values).astype(cupy.int32))


def _check_layout(shape: tuple[int, ...], dtype: Any, groups: int) -> None:
    kind = np.dtype(getattr(dtype, "dtype", dtype)).kind
    if shape != (groups,) or (kind not in "iu" and groups > 0):
        raise ArgumentError(
            f"offsets has shape {shape} of {dtype}; b has {groups} matrices, so it must have shape "
            f"({groups},), of integers: where each group of rows ends. Of running sums that start "
            "with 0, leave the 0 out."
        )


def _check_device(view: ArrayView, device: int | None) -> None:
    if view.device != device:
        place = "the host" if device is None else f"cuda:{device}"
        raise ArgumentError(
            f"offsets lies on cuda:{view.device}; a lies on {place}. Move offsets there, or to "
            "host memory."
        )


def _check_order(ends: np.ndarray[Any, Any], total_rows: int) -> None:
    found = []
    starts = np.concatenate([[0], ends.astype(np.int64)])
    (falling,) = np.nonzero(np.diff(starts) < 0)
    if falling.size:
        group = int(falling[0])
        rule = f"group {group} starts at row {starts[group]}, and no group ends before it starts"
        remedy = "Pass numpy.cumsum of the groups' rows"
        found.append(Violation(f"offsets[{group}]", ends[group], rule, remedy))
    if starts[-1] > total_rows:
        rule = f"a has {total_rows} rows"
        found.append(Violation("offsets[-1]", starts[-1], rule, "Pass where groups of a end"))
    refuse(found)
