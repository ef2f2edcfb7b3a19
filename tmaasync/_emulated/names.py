"""Names of shared memory, from the debug information of the emulator's build of a source."""

from __future__ import annotations

import functools

from tmaasync import emulate
from tmaasync._compile import Source
from tmaasync.emulate.report.debug_info import DebugInfo, debug_info
from tmaasync.errors import TMAError
from tmaasync.kernel.hangs import BarrierName

__all__ = ["barrier_names"]


def barrier_names(source: Source, kernel: str) -> BarrierName:
    """Return the source's names for parts of the kernel's dynamic shared memory, by offset.

    GPU builds keep no names, so they come from the emulator's build of the same source. A name is
    None if that build is impossible, for example without a C++ compiler.
    """

    @functools.cache
    def info() -> DebugInfo:
        return debug_info(emulate.build(source, kernel).path, source.text)

    def name(offset: int) -> str | None:
        try:
            return info().shared_name(offset)
        except (TMAError, OSError):
            return None

    return name
