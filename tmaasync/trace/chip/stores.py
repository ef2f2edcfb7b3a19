"""Stores of threads, by groups: which ones a wait is for, and when they are known to be over.

Groups are over in the order in which they were committed: a wait that leaves N pending is for
all but the last N.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tmaasync.trace.chip.layout import RecordKind
from tmaasync.trace.chip.notes import Notes

_STORES = (
    RecordKind.STORE,
    RecordKind.STORE_COMMIT,
    RecordKind.STORE_WAIT_READ,
    RecordKind.STORE_WAIT,
)
_STALL_NS = 50.0


@dataclass(frozen=True, slots=True)
class Done:
    """A note about the store of this sequence, out of this buffer."""

    note: int
    sequence: int
    shared: int


@dataclass(slots=True)
class StoreLog:
    """Result of following threads through their bulk groups; notes are indices."""

    sequences: dict[int, int] = field(default_factory=dict)
    """Sequence of each issued operation, and of each wait for one."""
    committed: list[Done] = field(default_factory=list)
    read: list[Done] = field(default_factory=list)
    over: list[Done] = field(default_factory=list)


@dataclass(slots=True)
class _Thread:
    """The groups of one thread; of each whether TMA has read it, and whether it is over."""

    open: list[int] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    read: int = 0
    over: int = 0


def follow_stores(notes: Notes, first_sequence: int) -> StoreLog:
    """Return the stores and reductions of every thread."""
    log, threads = StoreLog(), dict[tuple[int, int, int], _Thread]()
    sequence = first_sequence
    for note, key, kind, number in _selected(notes, _STORES):
        thread = threads.setdefault(key, _Thread())
        if kind == RecordKind.STORE:
            log.sequences[note] = sequence
            thread.open.append(note)
            sequence += 1
        elif kind == RecordKind.STORE_COMMIT:
            log.committed += _done(log, notes, note, thread.open)
            thread.groups.append(thread.open)
            thread.open = []
        else:
            _wait_for_stores(log, notes, thread, note, number, kind == RecordKind.STORE_WAIT)
    return log


def _wait_for_stores(
    log: StoreLog, notes: Notes, thread: _Thread, note: int, pending: int, are_writes: bool
) -> None:
    end = max(len(thread.groups) - pending, 0)
    awaited = [store for group in thread.groups[:end] for store in group][-1:]
    if awaited:
        log.sequences[note] = log.sequences[awaited[0]]
    # A wait that returned at once does not show when they were read.
    if notes.end[note] - notes.began[note] >= _STALL_NS:
        for group in thread.groups[thread.read : end]:
            log.read += _done(log, notes, note, group)
    thread.read = max(thread.read, end)
    if are_writes:
        for group in thread.groups[thread.over : end]:
            log.over += _done(log, notes, note, group)
        thread.over = max(thread.over, end)


def _done(log: StoreLog, notes: Notes, note: int, group: list[int]) -> Iterator[Done]:
    return (Done(note, log.sequences[store], int(notes.shared[store])) for store in group)


def _selected(
    notes: Notes, kinds: tuple[RecordKind, ...]
) -> Iterator[tuple[int, tuple[int, int, int], int, int]]:
    """Index, thread, kind and number of notes of these kinds, as they were written."""
    chosen = np.flatnonzero(np.isin(notes.kind, kinds))
    columns: list[list[Any]] = [
        getattr(notes, name)[chosen].tolist()
        for name in ("cluster", "rank", "thread", "kind", "number")
    ]
    for note, cluster, rank, thread, kind, number in zip(chosen.tolist(), *columns, strict=True):
        yield note, (cluster, rank, thread), kind, number
