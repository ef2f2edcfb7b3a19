"""Register the emulator and tracing with kernels, which know neither of them.

Each is imported at its first use: a host array, a trace of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from tmaasync.kernel.backend import HostBackend, register_host
from tmaasync.kernel.tracing import Tracing, register_tracing


def _emulator() -> Callable[[], HostBackend]:
    from tmaasync._emulated.backend import current_backend

    return current_backend


def _tracing() -> Tracing:
    from tmaasync import _traced

    return _traced


register_host(_emulator)
register_tracing(_tracing)
