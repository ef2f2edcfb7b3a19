"""Traces of the chip: what its warps noted in device memory, as the events of one launch."""

from tmaasync.trace.chip.clock import ChipClock
from tmaasync.trace.chip.decode import ChipLaunch, RawTrace, decode
from tmaasync.trace.chip.layout import (
    BUFFER_DTYPE,
    CLOCKS_DTYPE,
    RECORD_DTYPE,
    WARP_DTYPE,
    Layout,
    RecordKind,
)

__all__ = [
    "BUFFER_DTYPE",
    "CLOCKS_DTYPE",
    "RECORD_DTYPE",
    "WARP_DTYPE",
    "ChipClock",
    "ChipLaunch",
    "Layout",
    "RawTrace",
    "RecordKind",
    "decode",
]
