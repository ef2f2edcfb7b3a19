"""From the notes of the chip's warps to the events that the emulator writes.

What no thread sees is known when a wait ends: a load has landed, a store has been read, wgmma has
run, at the latest then. Where a wait found it done at its first look, it is left open since when:
the load has landed when that wait begins, the barrier's phase has no event of its completion, and
a store none of having been read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tmaasync._hardware import WARP_THREADS, WARPGROUP_WARPS
from tmaasync.trace.chip.layout import RecordKind
from tmaasync.trace.chip.mmas import follow_mmas
from tmaasync.trace.chip.notes import Notes
from tmaasync.trace.chip.phases import Barrier, barriers, phases_of
from tmaasync.trace.chip.signals import POSTS
from tmaasync.trace.chip.stores import Done, follow_stores
from tmaasync.trace.events import EVENT_DTYPE, NOBODY, NOTHING, EventKind

_Array = np.ndarray[Any, Any]


def events_of(notes: Notes, posts: _Array) -> _Array:
    """Return the events, an array of `EVENT_DTYPE`; times are whole nanoseconds.

    ``posts`` has, for each note of a signal, the number of the post that it is or has seen.
    """
    log = _Log(notes)
    log.add_barriers()
    log.add_loads()
    log.add_stores()
    log.add_mmas()
    log.add_meetings()
    log.add_signals(posts)
    return log.events()


class _Log:
    """Events under construction. The events of one thread keep the order of its notes."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._parts: list[tuple[_Array, _Array]] = []
        self._phases = np.zeros(len(notes), np.int64)
        self._seen: dict[tuple[int, int, int], dict[int, float]] = {}
        self._sequences = 0

    def events(self) -> _Array:
        """Events in the order of their notes."""
        if not self._parts:
            return np.empty(0, EVENT_DTYPE)
        order = np.concatenate([order for order, _ in self._parts])
        events = np.concatenate([events for _, events in self._parts])
        return events[np.argsort(order, kind="stable")]

    def _add(self, kind: EventKind, chosen: _Array, *, began: bool = False, **columns: Any) -> None:
        """Events of threads: one of each chosen note, when it began or ended."""
        notes = self._notes
        events = np.zeros(len(chosen), EVENT_DTYPE)
        times = notes.began if began else notes.end
        fields = {
            "time": times[chosen],
            "cluster": notes.cluster[chosen],
            "shared": NOTHING,
            "barrier": NOTHING,
            "rank": notes.rank[chosen],
            "thread": notes.thread[chosen],
            "kind": kind,
            "other": notes.rank[chosen],
            "sequence": NOTHING,
        } | columns
        for name, values in fields.items():
            events[name] = values
        self._parts.append((2 * chosen + (not began), events))

    def _of_kind(self, *kinds: RecordKind) -> _Array:
        return np.flatnonzero(np.isin(self._notes.kind, kinds))

    def _on_barrier(self, chosen: _Array) -> dict[str, Any]:
        return {
            "barrier": self._notes.barrier[chosen],
            "phase": _as_unsigned(self._phases[chosen]),
            "other": self._notes.home[chosen],
        }

    # --- mbarriers ----------------------------------------------------------------------------

    def add_barriers(self) -> None:
        """Announcements, arrivals, waits, and the phases that are known to be over."""
        for barrier in barriers(self._notes):
            self._phases[barrier.notes] = phases_of(self._notes, barrier)
            self._add_phases(barrier)
        expects = self._of_kind(RecordKind.EXPECT)
        expected = self._notes.amount[expects] * self._notes.number[expects]
        self._add(EventKind.EXPECT, expects, bytes=expected, **self._on_barrier(expects))
        arrivals = self._of_kind(RecordKind.EXPECT, RecordKind.ARRIVE)
        self._add(EventKind.ARRIVE, arrivals, **self._on_barrier(arrivals))
        waits = self._of_kind(RecordKind.WAIT)
        self._add(EventKind.WAIT_BEGIN, waits, began=True, **self._on_barrier(waits))
        self._add(EventKind.WAIT_END, waits, **self._on_barrier(waits))

    def _add_phases(self, barrier: Barrier) -> None:
        """Add the ends of phases: at their last arrival, or where bytes land, as waits saw it."""
        seen = _seen(self._notes, barrier, self._phases)
        self._seen[barrier.cluster, barrier.home, barrier.offset] = {
            phase: time for phase, (time, _) in seen.items()
        }
        if barrier.expects:
            over = {phase: time for phase, (time, is_exact) in seen.items() if is_exact}
        else:
            over = dict(enumerate(barrier.completed.tolist()))
        over.pop(-1, None)
        events = np.zeros(len(over), EVENT_DTYPE)
        events["time"] = list(over.values())
        events["phase"] = list(over)
        for name, value in {
            "cluster": barrier.cluster,
            "rank": barrier.home,
            "other": barrier.home,
            "barrier": barrier.offset,
        }.items():
            events[name] = value
        self._add_hardware(EventKind.PHASE_COMPLETED, events)

    def _add_hardware(self, kind: EventKind, events: _Array) -> None:
        """Events of no thread; what they lack is filled in."""
        events["kind"] = kind
        events["thread"] = NOBODY
        if kind == EventKind.PHASE_COMPLETED:
            events["shared"] = NOTHING
            events["sequence"] = NOTHING
        if kind not in (EventKind.PHASE_COMPLETED, EventKind.LOAD_LANDED):
            events["barrier"] = NOTHING
        self._parts.append((np.full(len(events), 2 * len(self._notes)), events))

    # --- loads --------------------------------------------------------------------------------

    def add_loads(self) -> None:
        """Loads, and for each block that receives one when it is known to have landed."""
        loads = self._of_kind(RecordKind.LOAD)
        sequences = self._new_sequences(len(loads))
        notes = self._notes
        self._add(
            EventKind.LOAD_ISSUED,
            loads,
            shared=notes.shared[loads],
            bytes=notes.amount[loads],
            sequence=sequences,
            **self._on_barrier(loads),
        )
        rows = [
            (time, load, rank, sequence)
            for load, sequence in zip(loads.tolist(), sequences.tolist(), strict=True)
            for rank, time in self._landings(load)
        ]
        columns = [np.array(column) for column in zip(*rows, strict=True)] or [np.empty(0, int)] * 4
        times, which, ranks, numbers = columns
        events = np.zeros(len(rows), EVENT_DTYPE)
        for name, values in {
            "time": times,
            "cluster": notes.cluster[which],
            "rank": ranks,
            "other": ranks,
            "shared": notes.shared[which],
            "barrier": notes.barrier[which],
            "phase": _as_unsigned(self._phases[which]),
            "bytes": notes.amount[which],
            "sequence": numbers,
        }.items():
            events[name] = values
        self._add_hardware(EventKind.LOAD_LANDED, events)

    def _landings(self, load: int) -> Iterator[tuple[int, float]]:
        """Rank and time of every block that is known to have received a load."""
        notes = self._notes
        mask = int(notes.number[load]) or 1 << int(notes.home[load])
        for rank in range(mask.bit_length()):
            place = int(notes.cluster[load]), rank, int(notes.barrier[load])
            time = self._seen.get(place, {}).get(int(self._phases[load]))
            if mask >> rank & 1 and time is not None and time >= notes.end[load]:
                yield rank, time

    def _new_sequences(self, count: int) -> _Array:
        first = self._sequences
        self._sequences += count
        return np.arange(first, first + count)

    # --- groups -------------------------------------------------------------------------------

    def add_stores(self) -> None:
        """Add stores, their groups, and the waits for groups."""
        log = follow_stores(self._notes, self._sequences)
        stores = self._of_kind(RecordKind.STORE)
        self._new_sequences(len(stores))
        self._add(
            EventKind.STORE_ISSUED,
            stores,
            shared=self._notes.shared[stores],
            bytes=self._notes.amount[stores],
            sequence=_looked_up(log.sequences, stores),
        )
        committed = np.array([done.note for done in log.committed], np.int64)
        self._add(
            EventKind.STORE_COMMITTED,
            committed,
            shared=[done.shared for done in log.committed],
            sequence=[done.sequence for done in log.committed],
        )
        self._add_stores_done(EventKind.STORE_READ, log.read)
        self._add_stores_done(EventKind.STORE_WRITTEN, log.over)
        waits = self._of_kind(RecordKind.STORE_WAIT_READ, RecordKind.STORE_WAIT)
        waits = np.array([wait for wait in waits if wait in log.sequences], np.int64)
        self._add_waits(waits, _looked_up(log.sequences, waits))

    def add_mmas(self) -> None:
        """Add groups of wgmma, and the waits for them."""
        log = follow_mmas(self._notes, self._sequences)
        self._new_sequences(len(log.issued))
        # Its first warp stands for a warpgroup.
        leads = self._notes.thread // WARP_THREADS % WARPGROUP_WARPS == 0
        issued = leads[log.issued]
        sequences = log.issued_sequences[issued]
        self._add(EventKind.MMA_ISSUED, log.issued[issued], sequence=sequences)
        over = leads[log.over]
        self._add_done(EventKind.MMA_EXECUTED, log.over[over], log.over_sequences[over], NOTHING)
        self._add_waits(log.awaited, log.awaited_sequences)

    def _add_waits(self, waits: _Array, sequences: _Array) -> None:
        """Waits that were for something."""
        self._add(EventKind.WAIT_BEGIN, waits, began=True, sequence=sequences)
        self._add(EventKind.WAIT_END, waits, sequence=sequences)

    def _add_stores_done(self, kind: EventKind, done: Sequence[Done]) -> None:
        which = np.array([one.note for one in done], np.int64)
        sequences = np.array([one.sequence for one in done], np.int64)
        self._add_done(kind, which, sequences, [one.shared for one in done])

    def _add_done(self, kind: EventKind, which: _Array, sequences: _Array, shared: Any) -> None:
        """Add work that is known to be over after these notes."""
        events = np.zeros(len(which), EVENT_DTYPE)
        for name, values in {
            "time": self._notes.end[which],
            "cluster": self._notes.cluster[which],
            "rank": self._notes.rank[which],
            "other": self._notes.rank[which],
            "shared": shared,
            "sequence": sequences,
        }.items():
            events[name] = values
        self._add_hardware(kind, events)

    # --- meetings -----------------------------------------------------------------------------

    def add_meetings(self) -> None:
        """Add the waits of named barriers and of clusters."""
        notes = self._notes
        arrivals = self._of_kind(RecordKind.NAMED_ARRIVE)
        self._add(EventKind.NAMED_ARRIVE, arrivals, barrier=notes.barrier[arrivals])
        waits = self._of_kind(RecordKind.NAMED_WAIT)
        self._add(EventKind.NAMED_ARRIVE, waits, began=True, barrier=notes.barrier[waits])
        self._add(EventKind.NAMED_WAIT_END, waits, barrier=notes.barrier[waits])
        self._add(EventKind.CLUSTER_ARRIVE, self._of_kind(RecordKind.CLUSTER_ARRIVE))
        waits = self._of_kind(RecordKind.CLUSTER_WAIT)
        # The wait begins with the arrival, unless the thread did something in between.
        apart = waits[notes.kind[np.maximum(waits - 1, 0)] != RecordKind.CLUSTER_ARRIVE]
        self._add(EventKind.WAIT_BEGIN, apart, began=True)
        self._add(EventKind.CLUSTER_WAIT_END, waits)

    # --- signals ------------------------------------------------------------------------------

    def add_signals(self, posts: _Array) -> None:
        """Add posts of signals, and waits for them; one that was given up has no end."""
        self._add(EventKind.WAIT_BEGIN, self._of_kind(RecordKind.SIGNAL_WAIT_BEGIN))
        for kind, chosen in (
            (EventKind.SIGNAL_POSTED, self._of_kind(*POSTS)),
            (EventKind.SIGNAL_WAIT_END, self._of_kind(RecordKind.SIGNAL_WAIT)),
        ):
            notes = self._notes
            self._add(
                kind,
                chosen,
                barrier=notes.barrier[chosen],
                phase=notes.amount[chosen],
                other=notes.home[chosen],
                sequence=posts[chosen],
            )


def _seen(notes: Notes, barrier: Barrier, phases: _Array) -> dict[int, tuple[float, bool]]:
    """Return when each phase is first known to be over, and whether it ended at that time."""
    waits = barrier.notes[notes.kind[barrier.notes] == RecordKind.WAIT]
    ready = notes.is_ready[waits]
    times = np.where(ready, notes.began[waits], notes.end[waits])
    seen: dict[int, tuple[float, bool]] = {}
    for index in np.argsort(times, kind="stable"):
        seen.setdefault(int(phases[waits[index]]), (float(times[index]), not ready[index]))
    return seen


def _looked_up(sequences: dict[int, int], chosen: _Array) -> _Array:
    return np.array([sequences[int(one)] for one in chosen], np.int64)


def _as_unsigned(phases: _Array) -> _Array:
    return np.where(phases < 0, NOTHING, phases)
