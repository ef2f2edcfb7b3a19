"""Phase numbers of barriers; the chip notes parities only.

A phase is over when its barrier's count of arrivals is in, and the bytes that it expects. Arrivals
are noted, so they can be counted. The landing of bytes is not: only that a wait for them ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync.trace.chip.layout import RecordKind
from tmaasync.trace.chip.notes import Notes

_Array = np.ndarray[Any, Any]
_ARRIVALS = (RecordKind.EXPECT, RecordKind.ARRIVE)
# By how much the clocks of two SMs may differ.
_SKEW_NS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """One barrier: who noted anything of it, by index, and when each phase had its arrivals."""

    cluster: int
    home: int
    offset: int
    notes: _Array
    expects: bool
    completed: _Array


def barriers(notes: Notes) -> Iterator[Barrier]:
    """Yield every barrier that anything is noted of."""
    kinds = (RecordKind.INIT, *_ARRIVALS, RecordKind.WAIT, RecordKind.LOAD)
    mine = np.flatnonzero(np.isin(notes.kind, kinds))
    if not len(mine):
        return
    keys = np.stack([notes.cluster[mine], notes.home[mine], notes.barrier[mine]])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which))
    for (cluster, home, offset), group in zip(
        distinct.T.tolist(), np.split(mine[order], ends[:-1]), strict=True
    ):
        yield Barrier(
            cluster=cluster,
            home=home,
            offset=offset,
            notes=group,
            expects=bool((notes.kind[group] == RecordKind.EXPECT).any()),
            completed=_completed(notes, group),
        )


def _completed(notes: Notes, group: _Array) -> _Array:
    """Return when each phase had its arrivals."""
    inits = group[notes.kind[group] == RecordKind.INIT]
    count = int(notes.amount[inits[0]]) if len(inits) else 1
    arrivals, total = _arrivals(notes, group)
    phases = int(total[-1]) // count if len(total) else 0
    last = np.searchsorted(total, count * np.arange(1, phases + 1))
    times: _Array = notes.end[arrivals[last]]
    return times


def _arrivals(notes: Notes, group: _Array) -> tuple[_Array, _Array]:
    """Return the arrivals in time order, and the count after each."""
    mine = group[np.isin(notes.kind[group], _ARRIVALS)]
    mine = mine[np.argsort(notes.end[mine], kind="stable")]
    each = np.where(notes.kind[mine] == RecordKind.ARRIVE, notes.amount[mine], 1)
    return mine, np.cumsum(each * notes.number[mine])


def phases_of(notes: Notes, barrier: Barrier) -> _Array:
    """Return the phase of each of the barrier's notes; -1 is the one before phase 0.

    An arrival belongs to the current phase, a load to the phase whose bytes were announced last,
    a wait to the latest phase of its parity that had its arrivals when the wait ended.
    """
    group = barrier.notes
    kinds, times = notes.kind[group], notes.end[group]
    under_way = np.searchsorted(barrier.completed, times)
    over = np.searchsorted(barrier.completed, times + _SKEW_NS, side="right") - 1
    over -= over % 2 != notes.parity[group]
    over = np.maximum(over, -notes.parity[group])
    announced = _announced(kinds, times, under_way)
    kinds_with_phases = [kinds == RecordKind.WAIT, kinds == RecordKind.LOAD]
    phases: _Array = np.select(kinds_with_phases, [over, announced], under_way)
    return phases


def _announced(kinds: _Array, times: _Array, under_way: _Array) -> _Array:
    """Return the phase of the last announcement before each time; 0 where there is none."""
    expects = np.flatnonzero(kinds == RecordKind.EXPECT)
    if not len(expects):
        return np.zeros(len(kinds), np.int64)
    expects = expects[np.argsort(times[expects], kind="stable")]
    last = np.searchsorted(times[expects], times, side="right") - 1
    phases: _Array = under_way[expects[np.maximum(last, 0)]]
    return phases
