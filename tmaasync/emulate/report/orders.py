"""The events that a verified launch reorders, in words."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

from tmaasync._driver import LaunchConfig
from tmaasync._source.atomics import unused_atomics
from tmaasync.emulate.abi import NAMED, SyncEvent, SyncKind, Unordered
from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.emulate.report.words import Words


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
    """Two unordered events, in the order of a run.

    ``swap`` is the change of its signature if they change places and nothing else changes; 0: not
    known.
    """

    kind: Unordered
    barrier: int
    cta: int
    word: int
    first: Event
    second: Event
    previous: tuple[Event, ...] = ()
    swap: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """The barrier or the word that both are about."""
        return self.cta, self.barrier, self.word


_unused = functools.lru_cache(16)(unused_atomics)


class _Numbered(NamedTuple):
    """One of the launches that run together, and the number of its first thread."""

    words: Words
    config: LaunchConfig
    first_thread: int
    code: int  # address of the kernel's library

    def line(self, address: int) -> str | None:
        """Return the line in the kernel's source of an address in its code."""
        return self.words.line(address - self.code) if address else None


class OrderWords:
    """The words of the kernels' sources for the order of launches that run together, or of one."""

    def __init__(self, launches: Iterable[tuple[EmulatedProgram, LaunchConfig]]) -> None:
        """Take the kernels and their launches, in the order of their threads' numbers."""
        self._launches: list[_Numbered] = []
        threads = 0
        for program, config in launches:
            words = Words(program, config.shared_bytes)
            self._launches.append(_Numbered(words, config, threads, program.address_of(0)))
            threads += math.prod(config.grid) * math.prod(config.block)

    def pair(self, pair: Pair) -> str:
        """Say that the second event of a pair goes before the first."""
        if pair.kind == Unordered.REFUSAL:
            return f"the request of {self._event(pair.first)} for a cluster fails"
        place = "" if pair.kind == Unordered.ACCESS else f"at {self._barrier(pair)}, "
        return f"{place}{self._event(pair.second)} goes before {self._event(pair.first)}"

    def is_reduction(self, event: Event) -> bool:
        """Return whether an event calls an atomic function without use of its result."""
        launch = self._launch_of(event)
        source = launch.words.program.source
        file, _, line = (launch.line(event.address) or "").rpartition(":")
        return file == source.name and int(line) in _unused(source.text)

    def _launch_of(self, event: Event) -> _Numbered:
        after = bisect.bisect(self._launches, event.owner, key=lambda one: one.first_thread)
        return self._launches[after - 1]

    def _barrier(self, pair: Pair) -> str:
        if pair.barrier & NAMED:
            return f"named barrier {pair.barrier ^ NAMED}"
        thread = pair.second if pair.first.kind == SyncKind.PHASE else pair.first
        name = self._launch_of(thread).words.name(pair.barrier)
        return name or f"the mbarrier at shared offset {pair.barrier}"

    def _event(self, event: Event) -> str:
        if event.kind == SyncKind.PHASE:
            return f"the end of phase {event.number}"
        launch = self._launch_of(event)
        line = launch.line(event.address)
        at = "" if line is None else f" at {line}"
        cta, index = divmod(event.owner - launch.first_thread, math.prod(launch.config.block))
        thread = f"thread {index} of block {_block(launch.config, cta)}{at}"
        if len(self._launches) > 1:
            thread += f" in launch {self._launches.index(launch)}"
        return f"what lands for {thread}" if event.kind == SyncKind.LANDING else thread


def _block(config: LaunchConfig, cta: int) -> tuple[int, int, int]:
    """Return the block of a CTA; CTAs of a cluster have consecutive numbers."""
    size = config.cluster or (1, 1, 1)
    index, rank = divmod(cta, math.prod(size))
    across, down = config.grid[0] // size[0], config.grid[1] // size[1]
    return (
        index % across * size[0] + rank % size[0],
        index // across % down * size[1] + rank // size[0] % size[1],
        index // across // down * size[2] + rank // size[0] // size[1],
    )
