"""Arrays that an operation returns: of the caller's kind, on the caller's device."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element

__all__ = [
    "address_of",
    "copy_bytes",
    "empty",
    "empty_rows",
    "maker",
    "padded_row_bytes",
    "rows_maker",
]

_GRANULE_BYTES = 16


def empty(like: ArrayView, shape: tuple[int, ...], element: Element) -> Any:
    """An uninitialised array of the framework and device of ``like``.

    Frameworks other than CuPy and torch get a CuPy array, which they take through DLPack; in host
    memory, a NumPy array.
    """
    if like.framework == "torch":
        torch = sys.modules["torch"]
        device = "cpu" if like.device is None else f"cuda:{like.device}"
        return torch.empty(shape, dtype=getattr(torch, element.name), device=device)
    if like.device is None:
        return np.empty(shape, dtype=element.dtype)
    import cupy

    with cupy.cuda.Device(like.device):
        return cupy.empty(shape, dtype=element.dtype)


def maker(like: ArrayView, shape: tuple[int, ...], element: Element) -> Callable[[], Any]:
    """What makes arrays of `empty` again and again, at less cost; it holds no array."""
    if like.framework == "torch" and like.device is not None:
        return _torch_maker(shape, getattr(sys.modules["torch"], element.name), like.device)
    return functools.partial(empty, _unowned(like), shape, element)


def _torch_maker(shape: tuple[int, ...], dtype: object, device: int) -> Callable[[], Any]:
    """What makes contiguous tensors there.

    It asks as torch.compile's own code does, at a quarter of the cost of torch.empty. That knows
    the current device alone, which is the right one as a rule.
    """
    torch = sys.modules["torch"]
    sizes = [max(size, 1) for size in shape]
    strides = tuple(math.prod(sizes[dimension + 1 :]) for dimension in range(len(sizes)))
    anywhere = functools.partial(torch.empty, shape, dtype=dtype, device=f"cuda:{device}")
    try:
        current_device = torch._C._cuda_getDevice
        allocate = torch._C._dynamo.guards._empty_strided_cuda
    except AttributeError:  # not public: another release may differ
        return anywhere

    def make() -> Any:
        return allocate(shape, strides, dtype) if current_device() == device else anywhere()

    return make


def _unowned(view: ArrayView) -> ArrayView:
    return view._replace(owner=None, lease=None)


def address_of(array: Any) -> int:
    """Where an array of `empty` or `maker` starts."""
    of_torch = getattr(array, "data_ptr", None)
    return _arrays.view(array).address if of_torch is None else int(of_torch())


def empty_rows(like: ArrayView, shape: tuple[int, ...], element: Element) -> Any:
    """The same, whose rows (the last dimension) are a multiple of 16 bytes apart for TMA."""
    *outer, columns = shape
    padded = padded_row_bytes(columns, element) // element.itemsize
    whole = empty(like, (*outer, padded), element)
    return whole if padded == columns else whole[..., :columns]


def rows_maker(like: ArrayView, rows: ArrayView) -> Callable[[], Any]:
    """What makes arrays of `empty_rows` again, for ``like``, that lie like one of them."""
    owner: Any = rows.owner
    if rows.framework == "torch" and owner.is_contiguous():
        return maker(rows, rows.shape, rows.element)
    return functools.partial(empty_rows, _unowned(like), rows.shape, rows.element)


def padded_row_bytes(columns: int, element: Element) -> int:
    """How far apart such rows are."""
    return -(-columns * element.itemsize // _GRANULE_BYTES) * _GRANULE_BYTES


def copy_bytes(device: int | None, target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy between addresses of one device, or of host memory."""
    if device is None:
        ctypes.memmove(target, source, size_bytes)
    else:
        _driver.copy_bytes(target, source, size_bytes, stream)
