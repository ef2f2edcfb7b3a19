"""Posts of signals and the waits that they end, in launches that ran together on several devices.

Every GPU has a global timer of its own. Which post a wait has seen follows from their epochs, so it
needs no timer; where the timers of two devices put a wait before its post, one of them is late.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tmaasync.trace.chip.layout import RecordKind
from tmaasync.trace.chip.notes import Notes
from tmaasync.trace.events import NOTHING

_Array = np.ndarray[Any, Any]
_EPOCHS = 1 << 32

POSTS = (RecordKind.SIGNAL_POST, RecordKind.SIGNAL_ADD)


class SeenPost(NamedTuple):
    """The launches of a post and of a wait that has seen it, and the time from one to the other."""

    poster: int
    waiter: int
    taken_ns: float


class _Post(NamedTuple):
    key: float  # the epoch; of an add the time
    time: float
    number: int
    launch: int


@dataclass(slots=True)
class _Word:
    """The posts of one signal of one rank, in the order of their keys."""

    base: int
    sets: list[_Post]
    adds: list[_Post]

    def seen_by(self, epoch: int, time: float) -> _Post | None:
        """Return the first post that reaches the epoch; of adds, the last one before the time."""
        if self.sets:
            at = bisect.bisect_left(self.sets, (_unwrapped(epoch, self.base),))
            return self.sets[at] if at < len(self.sets) else None
        at = bisect.bisect_right(self.adds, (time, float("inf"))) - 1
        return self.adds[at] if at >= 0 else None


def follow_signals(launches: Sequence[Notes]) -> tuple[list[_Array], list[SeenPost]]:
    """Return for each note of each launch the post that it is or has seen, and those seen.

    Args:
        launches: Notes whose times count from the same moment.
    """
    numbers = [np.full(len(notes), NOTHING, np.int64) for notes in launches]
    words = _words(launches, numbers)
    seen: list[SeenPost] = []
    for launch, notes in enumerate(launches):
        for wait in np.flatnonzero(notes.kind == RecordKind.SIGNAL_WAIT).tolist():
            word = words.get((int(notes.home[wait]), int(notes.barrier[wait])))
            end = float(notes.end[wait])
            post = None if word is None else word.seen_by(int(notes.amount[wait]), end)
            if word is None or post is None:  # a stream or another process posted it
                continue
            numbers[launch][wait] = post.number
            if word.sets:
                seen.append(SeenPost(post.launch, launch, end - post.time))
    return numbers, seen


def _words(launches: Sequence[Notes], numbers: Sequence[_Array]) -> dict[tuple[int, int], _Word]:
    """Number all posts, and return them by the rank and the number of their signal."""
    words: dict[tuple[int, int], _Word] = {}
    count = 0
    for launch, notes in enumerate(launches):
        for note in np.flatnonzero(np.isin(notes.kind, POSTS)).tolist():
            epoch, time = int(notes.amount[note]), float(notes.end[note])
            place = int(notes.home[note]), int(notes.barrier[note])
            word = words.setdefault(place, _Word(epoch, [], []))
            if notes.kind[note] == RecordKind.SIGNAL_POST:
                word.sets.append(_Post(_unwrapped(epoch, word.base), time, count, launch))
            else:
                word.adds.append(_Post(time, time, count, launch))
            numbers[launch][note] = count
            count += 1
    for word in words.values():
        word.sets.sort()
        word.adds.sort()
    return words


def _unwrapped(epoch: int, base: int) -> int:
    """Return how far an epoch is from another, which counts modulo 2^32."""
    return (epoch - base + _EPOCHS // 2) % _EPOCHS


def late_by(devices: Sequence[int | None], seen: Sequence[SeenPost]) -> list[float]:
    """Return by how many nanoseconds the times of each launch have to be later.

    They are the least delays of devices after which no wait ends before its post: the timers of two
    devices that signal both ways are then apart by less than two signals take.
    """
    least: dict[tuple[int | None, int | None], float] = {}
    for poster, waiter, taken_ns in seen:
        pair = devices[poster], devices[waiter]
        if pair[0] != pair[1]:
            least[pair] = min(taken_ns, least.get(pair, taken_ns))
    delays: dict[int | None, float] = dict.fromkeys(devices, 0.0)
    for _ in delays:
        for (poster_device, waiter_device), taken_ns in least.items():
            needed = delays[poster_device] - taken_ns
            delays[waiter_device] = max(delays[waiter_device], needed)
    return [delays[device] for device in devices]
