"""Arrays that an operation returns: of the caller's kind, on the caller's device."""

from __future__ import annotations

import sys
from typing import Any

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync.errors import BackendError

__all__ = ["empty", "require_gpu"]


def empty(like: ArrayView, shape: tuple[int, ...], element: Element) -> Any:
    """An uninitialised array of the framework and device of ``like``.

    Frameworks other than CuPy and torch get a CuPy array, which they take through DLPack.
    """
    if like.framework == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, element.name), device=f"cuda:{like.device}")
    import cupy

    with cupy.cuda.Device(like.device):
        return cupy.empty(shape, dtype=element.dtype)


def require_gpu(view: ArrayView, argument: str) -> int:
    """The device of an array.

    Raises:
        BackendError: The array is in host memory.
    """
    if view.device is None:
        raise BackendError(
            f"{argument} is a {view.framework} array in host memory, and this version "
            "computes on a "
            "GPU only. Pass a CuPy, torch or JAX array on a device: cupy.asarray(array)."
        )
    return view.device
