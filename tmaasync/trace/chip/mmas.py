"""wgmma of warpgroups, by groups: which one a wait is for, and when it is known to be over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync._hardware import WARP_THREADS, WARPGROUP_THREADS
from tmaasync.trace.chip.layout import RecordKind
from tmaasync.trace.chip.notes import Notes

_Array = np.ndarray[Any, Any]
_KINDS = (RecordKind.MMA_COMMIT, RecordKind.MMA_WAIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MmaLog:
    """Notes by index, each with the sequence of its group: the four warps share one.

    ``issued`` are commits, ``awaited`` waits for a group, with the latest of the groups that
    are over then; ``over`` has every group, with the wait after which it is known to be.
    """

    issued: _Array
    issued_sequences: _Array
    awaited: _Array
    awaited_sequences: _Array
    over: _Array
    over_sequences: _Array


def follow_mmas(notes: Notes, first_sequence: int) -> MmaLog:
    """Return the groups of every warpgroup. The notes of one warp lie together, in order."""
    mine = np.flatnonzero(np.isin(notes.kind, _KINDS))
    _, warp = _numbered(notes, mine, WARP_THREADS)
    is_commit = notes.kind[mine] == RecordKind.MMA_COMMIT
    committed = _within(np.cumsum(is_commit), is_commit, warp)
    starts = first_sequence + _starts(notes, mine, committed)
    waits = np.flatnonzero(~is_commit)
    ends = np.maximum(committed[waits] - notes.number[mine[waits]], 0)
    before = _reached_before(ends, warp[waits])
    counts = np.maximum(ends - before, 0)
    rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    over = np.repeat(waits, counts)
    is_for = ends > 0
    return MmaLog(
        issued=mine[is_commit],
        issued_sequences=(starts + committed - 1)[is_commit],
        awaited=mine[waits[is_for]],
        awaited_sequences=(starts[waits] + ends - 1)[is_for],
        over=mine[over],
        over_sequences=starts[over] + np.repeat(before, counts) + rank,
    )


def _numbered(notes: Notes, chosen: _Array, threads: int) -> tuple[int, _Array]:
    """Return the number of groups of ``threads`` threads, and each note's group."""
    block = notes.cluster[chosen] << 16 | notes.rank[chosen]
    keys, numbers = np.unique(block << 16 | notes.thread[chosen] // threads, return_inverse=True)
    return len(keys), numbers


def _within(total: _Array, is_one: _Array, warp: _Array) -> _Array:
    """Return a running total, begun anew with every warp."""
    if not len(total):
        return total
    first = np.flatnonzero(np.append(True, warp[1:] != warp[:-1]))
    begins = (total - is_one)[first]
    within: _Array = total - np.repeat(begins, np.diff(np.append(first, len(total))))
    return within


def _starts(notes: Notes, mine: _Array, committed: _Array) -> _Array:
    """Return the first sequence of each note's warpgroup."""
    count, group = _numbered(notes, mine, WARPGROUP_THREADS)
    sizes = np.zeros(count, np.int64)
    np.maximum.at(sizes, group, committed)
    starts: _Array = (np.cumsum(sizes) - sizes)[group]
    return starts


def _reached_before(ends: _Array, warp: _Array) -> _Array:
    """Count the groups of each wait's warp that were over before it."""
    if not len(ends):
        return ends
    # Warps one above the other: a running maximum does not reach from one into the next.
    step = int(ends.max()) + 1
    order = np.argsort(warp, kind="stable")
    raised = ends[order] + warp[order] * step
    reached = np.concatenate([[0], np.maximum.accumulate(raised)[:-1]])
    before = np.empty_like(ends)
    before[order] = np.maximum(reached - warp[order] * step, 0)
    return before
