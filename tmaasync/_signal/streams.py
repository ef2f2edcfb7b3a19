"""What streams do for `Signals` on emulated devices: kernels of one thread in their queues."""

from __future__ import annotations

import functools

from tmaasync.emulate.report.hangs import COPY_ENGINE
from tmaasync.kernel import Kernel


@functools.cache
def _kernel(name: str) -> Kernel:
    return Kernel(COPY_ENGINE, name)


def post(signals: object, to: int, signal: int, epoch: int, stream: object) -> None:
    """Queue ``cuStreamWriteValue32``."""
    _kernel("stream_write")(1, 1, (signals, to, signal, epoch), stream=stream)


def wait(signals: object, signal: int, epoch: int, stream: object) -> None:
    """Queue ``cuStreamWaitValue32``."""
    _kernel("stream_wait")(1, 1, (signals, signal, epoch), stream=stream)


def copy(device: int, target: object, source: object, size_bytes: int, stream: object) -> None:
    """Queue ``cuMemcpyAsync``."""
    _kernel("stream_copy")(1, 1, (target, source, size_bytes), device=device, stream=stream)
