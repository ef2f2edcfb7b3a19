"""Copies of arrays that TMA cannot reach as they lie, made in the order of a stream."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync.ops._results import empty

__all__ = ["contiguous_copy", "in_order"]


@contextlib.contextmanager
def in_order(framework: str, device: int | None, stream: int) -> Iterator[None]:
    """Make a stream the framework's current one: what it allocates and computes is then in order.

    Frameworks other than torch are served by CuPy.
    """
    if device is None:
        yield
    elif framework == "torch":
        with _torch_stream(device, stream):
            yield
    else:
        import cupy

        with cupy.cuda.Device(device), _cupy_stream(cupy, stream):
            yield


def _torch_stream(device: int, stream: int) -> Any:
    cuda = sys.modules["torch"].cuda
    if stream == 0:
        return cuda.stream(cuda.default_stream(device))
    return cuda.stream(cuda.ExternalStream(stream, device=device))


def _cupy_stream(cupy: Any, stream: int) -> Any:
    if int(cupy.cuda.get_current_stream().ptr) == stream:
        return contextlib.nullcontext()
    if hasattr(cupy.cuda.Stream, "from_external"):  # new in CuPy 14
        return cupy.cuda.Stream.from_external(_StreamHandle(stream))
    return cupy.cuda.ExternalStream(stream)


class _StreamHandle(NamedTuple):
    """A handle that CuPy takes for a stream."""

    value: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and handle."""
        return 0, self.value


def contiguous_copy(view: ArrayView) -> Any:
    """A copy of an array of the same shape, of a framework that `empty` serves."""
    part = empty(view, view.shape, view.element)
    part[...] = _readable(view)
    return part


def _readable(view: ArrayView) -> Any:
    owner: Any = view.owner
    if view.device is None or view.framework in {"cupy", "torch"}:
        return owner
    import cupy

    return cupy.from_dlpack(owner) if hasattr(owner, "__dlpack__") else cupy.asarray(owner)
