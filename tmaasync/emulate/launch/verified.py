"""Verified launches: all interleavings of a kernel, by runs that each stand for many.

One run shows which operations happen before which. Two interleavings that differ only in the order
of independent operations end alike (Mazurkiewicz traces), so that one run stands for all of them.
Where two unordered operations are not independent, another run reverses them (dynamic partial-order
reduction, Flanagan and Godefroid, POPL 2005).
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tmaasync.emulate import abi
from tmaasync.emulate.launch.last_verdict import FOUND, RunNotes
from tmaasync.emulate.launch.recording import taken
from tmaasync.emulate.launch.repeated import RepeatedLaunch
from tmaasync.emulate.launch.verdict import LaunchVerdict
from tmaasync.emulate.report.orders import Event, OrderWords, Pair
from tmaasync.errors import EmulatedTimeout, TMAError


class _Run(NamedTuple):
    """The order of one run."""

    pairs: tuple[Pair, ...]
    operations: int
    phases: int
    signature: int
    notes: RunNotes
    is_cut: bool  # it has more pairs


class _Order(NamedTuple):
    """A run that is to come: its holds, refused requests, and the pairs that they reverse.

    If ``signature`` is not None, a run with it has the wanted order, and this one is not needed.
    """

    holds: tuple[tuple[Event, Event], ...] = ()
    refused: tuple[Event, ...] = ()
    reversed: tuple[Pair, ...] = ()
    signature: int | None = None


@dataclass(slots=True)
class Verification:
    """Verifies the launches of a context, each with at most ``max_runs`` and ``max_seconds``."""

    max_runs: int
    max_seconds: float
    verdicts: list[LaunchVerdict] = field(default_factory=list)

    def explore(self, launch: RepeatedLaunch) -> None:
        """Explore a launch, and leave the memory as its first run did.

        Raises:
            TMAError: The launch's error in the first interleaving that has one.
        """
        words = OrderWords(launch.launches)
        search = _Search(launch, words, self.max_runs, self.max_seconds)
        began = time.perf_counter()
        search.explore()
        first, error = search.first, search.error
        violated = error is not None and not isinstance(error, EmulatedTimeout)
        not_checked = () if violated else search.not_checked()
        verdict = LaunchVerdict(
            kernel=launch.name,
            status="violated" if violated else "incomplete" if not_checked else "clean",
            runs=search.runs,
            operations=first.operations if first else 0,
            phases=first.phases if first else 0,
            unordered=len(first.pairs) if first else 0,
            seconds=time.perf_counter() - began,
            not_checked=not_checked,
            error=error,
            order=tuple(map(words.pair, search.reversed)),
        )
        self.verdicts.append(verdict)
        if error is not None:
            raise error


class _Search:
    """The runs of one launch."""

    def __init__(
        self, launch: RepeatedLaunch, words: OrderWords, max_runs: int, max_seconds: float
    ) -> None:
        self._launch, self._words = launch, words
        self._reductions: set[int] = set()  # addresses of atomic calls with unused results
        self._max_runs, self._until = max_runs, time.perf_counter() + max_seconds
        self._waiting: deque[_Order] = deque()
        self._left: list[_Order] = []  # by a limit
        self._seen: set[int] = set()  # signatures of runs
        self._reversals: set[tuple[object, ...]] = set()  # by signature and pair
        self._tried: set[tuple[object, object]] = set()
        self._notes = RunNotes()
        self._is_cut = False
        self.runs = 0
        self.first: _Run | None = None
        self.error: TMAError | None = None
        self.reversed: tuple[Pair, ...] = ()

    def explore(self) -> None:
        """Run until every reversal was tried, one fails, or a limit is reached."""
        found = self._try(_Order())
        while found is not None and self._learn_reductions(found):
            found = self._try(_Order())
        if found is None:
            return
        self.first = found
        self._add_reversals(_Order(), found)
        while self._waiting:
            order = self._waiting.popleft()
            if order.signature in self._seen:
                continue
            if self.runs >= self._max_runs or time.perf_counter() >= self._until:
                self._left.append(order)
                continue
            found = self._try(order)
            if found is None:
                return
            self._add_reversals(order, found)
        self._launch.leave_first()

    def _learn_reductions(self, found: _Run) -> bool:
        """Note the atomic functions whose results are unused; return whether any is new."""
        known = len(self._reductions)
        for pair in found.pairs:
            for event in (pair.first, pair.second):
                if pair.kind == abi.Unordered.ACCESS and self._words.is_reduction(event):
                    self._reductions.add(event.address)
        return len(self._reductions) > known

    def not_checked(self) -> tuple[str, ...]:
        """Return what the runs do not stand for."""
        found = []
        if isinstance(self.error, EmulatedTimeout):
            found.append("what follows the time limit of a run")
        elif self._left:
            total = self.runs + len(self._left)
            found.append(f"{len(self._left)} of {total:,} known orders (max_runs, max_seconds)")
        if self._is_cut:
            found.append(f"unordered pairs beyond the first {abi.MOST_PAIRS:,} of a run")
        # Unknown bounds are no matter of interleavings.
        return (*found, *self._notes._replace(has_pointed=False).not_checked())

    def _try(self, order: _Order) -> _Run | None:
        self.runs += 1
        try:
            found = _run_in(self._launch, order, self._reductions)
        except FOUND as error:
            self.error, self.reversed = error, order.reversed
            return None
        self._notes = self._notes.joined(found.notes)
        self._is_cut |= found.is_cut
        return found

    def _add_reversals(self, order: _Order, found: _Run) -> None:
        """Ask for the runs that reverse one pair, and keep the order of all others.

        One is not needed if an explored run has the wanted order (the test of redundancy of optimal
        dynamic partial-order reduction: Abdulla, Aronis, Jonsson and Sagonas, POPL 2014): a run
        with the same events, of which the pair alone has changed places.
        """
        self._seen.add(found.signature)
        pairs = _of_events(found.pairs)
        kept = [(pair.second, pair.first) if _can_wait(pair) else None for pair in pairs]
        for number, pair in enumerate(pairs):
            # Runs with one signature may differ in repeated polls, and so in pairs.
            reversal = found.signature, pair.kind, pair.first, pair.second
            if reversal in self._reversals:
                continue
            self._reversals.add(reversal)
            holds, refused = (*filter(None, kept[:number]),), order.refused
            if pair.kind == abi.Unordered.REFUSAL:
                refused = (*refused, pair.first)
            else:
                # All other pairs keep their order, as far as the run has them.
                context = (
                    (pair.second, one) for one in pair.previous if one.owner != pair.second.owner
                )
                reversed_pair = pair.first, pair.second
                holds = (reversed_pair, *context, *holds, *filter(None, kept[number + 1 :]))
            signature = (found.signature + pair.swap) % 2**64 if pair.swap else None
            tried = frozenset(holds), refused
            if tried not in self._tried:
                self._tried.add(tried)
                self._waiting.append(_Order(holds, refused, (*order.reversed, pair), signature))


def _of_events(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Join the pairs of the same events, as words of one access have."""
    found: dict[tuple[object, ...], Pair] = {}
    for pair in pairs:
        key = pair.kind, pair.first, pair.second
        same = found.setdefault(key, pair)
        if same is not pair:
            more = (one for one in pair.previous if one not in same.previous)
            swap = same.swap + pair.swap if same.swap and pair.swap else 0
            found[key] = same._replace(previous=(*same.previous, *more), swap=swap)
    return tuple(found.values())


def _can_wait(pair: Pair) -> bool:
    return pair.second.kind != abi.SyncKind.PHASE and pair.kind != abi.Unordered.REFUSAL


def _run_in(launch: RepeatedLaunch, order: _Order, reductions: Collection[int]) -> _Run:
    holds = (abi.Hold * len(order.holds))(
        *(abi.Hold(abi.SyncEvent(*one), abi.SyncEvent(*until)) for one, until in order.holds)
    )
    refused = (abi.SyncEvent * len(order.refused))(*(abi.SyncEvent(*one) for one in order.refused))
    known = (ctypes.c_uint64 * len(reductions))(*reductions)
    interleaving = abi.Interleaving(
        holds=len(holds),
        hold=holds,
        refusals=len(refused),
        refusal=refused,
        reductions=len(known),
        reduction=known,
    )
    try:
        notes = launch.run(interleaving)
    finally:
        size = interleaving.pairs * ctypes.sizeof(abi.UnorderedPair)
        address = ctypes.cast(interleaving.pair, ctypes.c_void_p).value
        raw = taken(address, size)
    rows = (abi.UnorderedPair * interleaving.pairs).from_buffer_copy(raw)
    return _Run(
        tuple(_pairs(rows)),
        interleaving.operations,
        interleaving.phases,
        interleaving.signature,
        notes,
        interleaving.pairs == abi.MOST_PAIRS,
    )


def _pairs(rows: Iterable[abi.UnorderedPair]) -> Iterator[Pair]:
    """Yield the pairs, each with the events of the rows that follow it."""
    last: Pair | None = None
    for row in rows:
        first, second = Event.of(row.first), Event.of(row.second)
        if row.kind == abi.Unordered.CONTEXT:
            assert last is not None  # noqa: S101 - it follows its pair
            last = last._replace(previous=(*last.previous, first))
            continue
        if last is not None:
            yield last
        kind, place = abi.Unordered(row.kind), (row.barrier, row.cta, row.word)
        last = Pair(kind, *place, first, second, swap=row.swap)
    if last is not None:
        yield last
