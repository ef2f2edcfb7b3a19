"""Waits of streams for signals, which the driver ends late or never."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tmaasync import _driver
from tmaasync.errors import HungSignal

EPOCH_MODULUS = 1 << 32
_POLL_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class StreamWait:
    """A wait for a signal, which lies at an address of a device."""

    rank: int
    signal: int
    device: int
    address: int
    epoch: int

    def ended(self, start: float, budget_seconds: float) -> HungSignal | None:
        """Wait for the end; release a wait that exceeds the budget, and return its report."""
        while not _is_reached(seen := _driver.peek_word(self.device, self.address), self.epoch):
            waited = time.monotonic() - start
            if waited > budget_seconds:
                _driver.poke_word(self.device, self.address, self.epoch)
                return HungSignal(
                    rank=self.rank,
                    signal=self.signal,
                    epoch=self.epoch,
                    seen=seen,
                    waited_seconds=waited,
                )
            time.sleep(_POLL_SECONDS)
        return None


class StreamWaits:
    """The waits that streams have begun since the last `end`."""

    def __init__(self) -> None:
        # The latest epoch of each signal alone.
        self._waits: dict[int, StreamWait] = {}

    def add(self, wait: StreamWait) -> None:
        earlier = self._waits.get(wait.address)
        if earlier is None or _is_reached(wait.epoch, earlier.epoch):
            self._waits[wait.address] = wait

    def end(self, budget_seconds: float) -> Iterator[HungSignal]:
        """Wait until all end; release and yield those that exceed the budget."""
        start = time.monotonic()
        waits, self._waits = self._waits, {}
        for wait in waits.values():
            hung = wait.ended(start, budget_seconds)
            if hung is not None:
                yield hung


def _is_reached(seen: int, epoch: int) -> bool:
    """Return ``int32(seen - epoch) >= 0``, the test of kernels and ``cuStreamWaitValue32``."""
    return (seen - epoch) % EPOCH_MODULUS < EPOCH_MODULUS // 2
