"""The events that a verified launch reorders, in words."""

from __future__ import annotations

import math
from typing import NamedTuple

from tmaasync._driver import LaunchConfig
from tmaasync._forks import cached_property
from tmaasync._source.atomics import unused_atomics
from tmaasync.emulate.report.words import Words
from tmaasync.emulate.verified_abi import NAMED, SyncEvent, SyncKind, Unordered


class Event(NamedTuple):
    """An `SyncEvent` that can be compared and hashed."""

    kind: int
    barrier: int
    owner: int
    number: int
    address: int

    @classmethod
    def of(cls, event: SyncEvent) -> Event:
        """Return the event of the runtime's struct."""
        return cls(event.kind, event.barrier, event.owner, event.number, event.address)


class Pair(NamedTuple):
    """Two unordered events, in the order of a run."""

    kind: Unordered
    barrier: int
    cta: int
    word: int
    first: Event
    second: Event
    previous: tuple[Event, ...] = ()

    @property
    def place(self) -> tuple[int, int, int]:
        """The barrier or the word that both are about."""
        return self.cta, self.barrier, self.word


class OrderWords:
    """The words of a kernel's source for the order of a launch."""

    def __init__(self, words: Words, config: LaunchConfig) -> None:
        """Take the names and lines of a kernel, and its launch."""
        self._words, self._config = words, config

    def pair(self, pair: Pair) -> str:
        """Say that the second event of a pair goes before the first."""
        if pair.kind == Unordered.REFUSAL:
            return f"the request of {self._event(pair.first)} for a cluster fails"
        place = "" if pair.kind == Unordered.ACCESS else f"at {self._barrier(pair.barrier)}, "
        return f"{place}{self._event(pair.second)} goes before {self._event(pair.first)}"

    def reduction(self, address: int) -> str | None:
        """Return the atomic function that is called at an address without use of its result."""
        source = self._words.program.source
        file, _, line = (self._words.line(address) or "").rpartition(":")
        return self._unused.get(int(line)) if file == source.name else None

    @cached_property
    def _unused(self) -> dict[int, str]:
        return unused_atomics(self._words.program.source.text)

    def _barrier(self, offset: int) -> str:
        if offset & NAMED:
            return f"named barrier {offset ^ NAMED}"
        return self._words.name(offset) or f"the mbarrier at shared offset {offset}"

    def _event(self, event: Event) -> str:
        if event.kind == SyncKind.PHASE:
            return f"the end of phase {event.number}"
        line, block = self._words.line(event.address), _block(self._config, event)
        at = "" if line is None else f" at {line}"
        thread = f"thread {event.owner % math.prod(self._config.block)} of block {block}{at}"
        return f"what lands for {thread}" if event.kind == SyncKind.LANDING else thread


def _block(config: LaunchConfig, event: Event) -> tuple[int, int, int]:
    """Return the block of an event's thread; a cluster's threads have consecutive numbers."""
    size = config.cluster or (1, 1, 1)
    cta = event.owner // math.prod(config.block)
    index, rank = divmod(cta, math.prod(size))
    across, down = config.grid[0] // size[0], config.grid[1] // size[1]
    return (
        index % across * size[0] + rank % size[0],
        index // across % down * size[1] + rank // size[0] % size[1],
        index // across // down * size[2] + rank // size[0] // size[1],
    )
