"""The memory in which kernels report waits for signals that took too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tmaasync._driver import PinnedMemory
from tmaasync._signal.pads import MAX_RANKS
from tmaasync.errors import HungSignal

# Mirrors of the structs in kernels/include/tmaasync/instrument/signal.cuh.
RECORDS_OF_RANK = 8
WRITTEN = 2
RECORD = np.dtype(
    [
        *((name, "<u4") for name in ("state", "rank", "signal", "epoch", "seen")),
        ("block", "<u4", 3),
        ("thread", "<u4"),
        ("line", "<u4"),
        ("waited_ns", "<u8"),
        ("file", "S96"),
    ]
)
RECORDS = np.dtype(
    [
        ("has_hung", "<u4"),
        ("padding", "<u4", 3),
        ("records", RECORD, (MAX_RANKS, RECORDS_OF_RANK)),
    ]
)
_HAS_HUNG = RECORDS["has_hung"]  # the first field, written after a record


class HangReports:
    """Pinned memory for the reports of all ranks; without a device none."""

    def __init__(self, device: int | None) -> None:
        self._memory = None if device is None else PinnedMemory(device, RECORDS.itemsize)

    @property
    def address(self) -> int:
        return 0 if self._memory is None else self._memory.address

    def waits(self) -> tuple[HungSignal, ...]:
        """Return the reported waits, longest first."""
        if self._memory is None:
            return ()
        if self._memory.read(_HAS_HUNG.itemsize) == bytes(_HAS_HUNG.itemsize):
            return ()
        records: Any = np.frombuffer(self._memory.read(), RECORDS)[0]["records"]
        written = records[records["state"] == WRITTEN]
        longest_first = sorted(written, key=lambda record: int(record["waited_ns"]), reverse=True)
        return tuple(map(_wait, longest_first))


def _wait(record: Any) -> HungSignal:
    return HungSignal(
        rank=int(record["rank"]),
        signal=int(record["signal"]),
        epoch=int(record["epoch"]),
        seen=int(record["seen"]),
        waited_seconds=int(record["waited_ns"]) / 1e9,
        block=tuple(record["block"].tolist()),
        thread=int(record["thread"]),
        source=f"{Path(record['file'].decode(errors='replace')).name}:{int(record['line'])}",
    )
