"""Checks of a launch's arrays: writable, on one device, and still at their address."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from tmaasync._arrays.frameworks import require_updatable
from tmaasync._arrays.protocols import read_interface
from tmaasync._arrays.value import ArrayView, Framework
from tmaasync._elements import Element
from tmaasync.errors import ArgumentError, ArrayTypeError, StaleTileError

_AddressAndShape = tuple[int, tuple[int, ...]]


def require_writable(view: ArrayView, argument: str) -> None:
    """Refuse an array that must not be written.

    Raises:
        ArgumentError: The array is read only, a torch tensor that torch would not update in place,
            or one place in memory has several of its elements.
    """
    if view.framework == "torch" and not view.is_stand_in:
        require_updatable(view.owner, argument)
    if not view.read_only:
        _require_own_places(view, argument)
        return
    remedy = (
        "JAX arrays are immutable: write into a CuPy array and hand that to JAX through DLPack"
        if view.framework == "jax"
        else "Pass a writable array, such as a copy"
    )
    raise ArgumentError.broken(argument, "read only", "the kernel would write into it", remedy)


def _require_own_places(view: ArrayView, argument: str) -> None:
    if view.is_empty or not _may_overlap_itself(view):
        return
    value = f"of shape {view.shape} with strides of {view.strides_bytes} bytes"
    rule = "several of its elements are one place in memory"
    remedy = "Pass an array that was not expanded, such as a copy"
    raise ArgumentError.broken(argument, value, rule, remedy)


def _may_overlap_itself(view: ArrayView) -> bool:
    """Whether a stride is shorter than the dimensions inside it reach.

    Slices and transposes of an array have none. Strides set by hand overlap then, but for
    combinations like shape (2, 2) with strides of (3, 2) elements.
    """
    pairs = zip(view.strides_bytes, view.shape, strict=True)
    reach = view.element.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in pairs if size > 1):
        if stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def where(device: int | None) -> str:
    """Return how messages name a device."""
    return "in host memory" if device is None else f"on cuda:{device}"


def common_device(views: Mapping[str, ArrayView]) -> int | None:
    """Return the one device all arrays lie on: a CUDA ordinal, or None for the host.

    Args:
        views: The arrays by the name of their argument; at least one.

    Raises:
        ArgumentError: They lie on several devices.
    """
    devices = {name: view.device for name, view in views.items()}
    if len(set(devices.values())) == 1:
        return next(iter(devices.values()))
    devices_by_name = ", ".join(f"{name} {where(device)}" for name, device in devices.items())
    raise ArgumentError.broken(
        "the arrays' placement",
        devices_by_name or "unknown, as there are no arrays",
        "one launch works on one device",
        "Move them all to one device",
    )


class _Strided(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides_bytes(self) -> tuple[int, ...]: ...
    @property
    def element(self) -> Element: ...


def is_contiguous(layout: _Strided) -> bool:
    if 0 in layout.shape:
        return True
    expected = layout.element.itemsize
    for size, stride in zip(reversed(layout.shape), reversed(layout.strides_bytes), strict=True):
        # The stride of a single row leads nowhere and may be anything.
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def may_overlap(first: ArrayView, second: ArrayView) -> bool:
    """Compare the arrays' address ranges; interleaved arrays meet without sharing a byte."""
    if first.device != second.device or first.is_empty or second.is_empty:
        return False
    (low, high), (other_low, other_high) = first.byte_bounds, second.byte_bounds
    return low < other_high and other_low < high


_NEW_TILE = "Call rebind with the array as it is, or make the tile anew"


def require_current(view: ArrayView, argument: str, remedy: str = _NEW_TILE) -> None:
    """Refuse a view whose array was freed, resized or moved since it was made.

    Raises:
        StaleTileError: ``current_address`` is no longer the view's.
    """
    address = current_address(view)
    if address == view.address:
        return
    now = "that memory is gone" if address is None else f"it now lies at {address:#x}"
    raise StaleTileError.broken(
        argument,
        f"made for an array of shape {view.shape} at {view.address:#x}",
        f"the array was freed, resized or moved since: {now}",
        remedy,
    )


def current_address(view: ArrayView) -> int | None:
    """Return where the owner lies at this moment.

    None if its memory is gone, or has become too small for the view. Cheap enough for every launch:
    no library is imported and no driver asked. An array exported through DLPack is pinned by the
    view's lease and cannot move.
    """
    if view.lease is not None:
        return view.address
    address, shape = _CURRENT[view.framework](view)
    if shape != view.shape and math.prod(shape) < math.prod(view.shape):
        return None
    return address if address or view.is_empty else None


def _numpy_address(view: ArrayView) -> _AddressAndShape:
    owner: Any = view.owner
    root = owner
    while isinstance(root.base, np.ndarray):
        root = root.base
    if root is not owner and root.flags.owndata:
        # A slice keeps its old pointer when the array it was cut from is resized.
        low, high = view.byte_bounds
        start = root.ctypes.data
        if low < start or start + root.nbytes < high:
            return 0, owner.shape
    return owner.ctypes.data, owner.shape


def _cupy_address(view: ArrayView) -> _AddressAndShape:
    owner: Any = view.owner
    return owner.data.ptr, owner.shape


def _torch_address(view: ArrayView) -> _AddressAndShape:
    owner: Any = view.owner
    return owner.data_ptr(), owner.shape


def _jax_address(view: ArrayView) -> _AddressAndShape:
    owner: Any = view.owner
    return (0 if owner.is_deleted() else view.address), view.shape


def _interface_address(view: ArrayView) -> _AddressAndShape:
    try:
        interface = read_interface(view.owner)
    except (ArgumentError, ArrayTypeError):
        return 0, view.shape
    return interface.address, interface.shape


_CURRENT: dict[Framework, Callable[[ArrayView], _AddressAndShape]] = {
    "numpy": _numpy_address,
    "cupy": _cupy_address,
    "torch": _torch_address,
    "jax": _jax_address,
    "other": _interface_address,
}
