"""The CUDA stream that work on an array belongs to.

Frameworks are found in ``sys.modules``: one that was never imported has no arrays here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from tmaasync._kinds import is_integer, shown
from tmaasync._torch_internals import current_stream
from tmaasync.errors import ArrayTypeError, LaunchError


def stream_of(frameworks: Iterable[str], device: int | None, stream: object = None) -> int:
    """Return the handle of the stream for work on arrays of these frameworks.

    Args:
        frameworks: As `ArrayView.framework` has them.
        device: Where the arrays lie; host memory has no streams: ``stream`` is checked, and 0 is
            returned.
        stream: The caller's choice: a CuPy or torch stream, anything with ``__cuda_stream__``, or a
            handle. By default the current stream of the arrays' framework.

    Raises:
        ArrayTypeError: ``stream`` is no stream.
        LaunchError: CuPy and torch arrays are mixed, and the two have different current streams.
    """
    handle = None if stream is None else _stream_handle(stream)
    if device is None:
        return 0
    if handle is not None:
        return handle
    return current_stream_of(frameworks)(device)


def current_stream_of(frameworks: Iterable[str]) -> Callable[[int], int]:
    """Return a function from a device's ordinal to its current stream.

    It raises LaunchError where CuPy and torch arrays are mixed, and the two have different ones.
    """
    named = set(frameworks)
    cupy, torch = "cupy" in named, "torch" in named
    if cupy and torch:
        return _common_stream(_cupy_stream(), current_stream())
    # JAX and other frameworks do not name their stream: their work goes to CuPy's current one.
    return current_stream() if torch else _cupy_stream() if cupy else _stream_of_others


def _stream_of_others(device: int) -> int:
    return _cupy_stream()(device)


def _cupy_stream() -> Callable[[int], int]:
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return lambda device: 0
    get_current_stream = cupy.cuda.get_current_stream

    def handle(device: int) -> int:
        found: int = get_current_stream(device).ptr
        return found

    return handle


def _common_stream(
    of_cupy: Callable[[int], int], of_torch: Callable[[int], int]
) -> Callable[[int], int]:
    def handle(device: int) -> int:
        cupy, torch = of_cupy(device), of_torch(device)
        if torch != cupy:
            raise LaunchError.broken(
                "args",
                f"torch arrays (current stream {torch:#x}) and CuPy arrays (current stream "
                f"{cupy:#x})",
                "one launch runs on one stream",
                "Pass stream=",
                verb="mix",
            )
        return torch

    return handle


def _stream_handle(stream: object) -> int:
    if is_integer(stream) and stream >= 0:
        return int(stream)
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    for attribute in ("ptr", "cuda_stream"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    rule = "it must be a CuPy or torch stream, an object with __cuda_stream__, or a handle"
    remedy = "Pass cupy.cuda.get_current_stream()"
    raise ArrayTypeError.broken("stream", shown(stream), rule, remedy)
