"""Infer the warps that a hung wait is missing from the earlier arrivals in its cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tmaasync._source.names import RingPart, ring_part
from tmaasync.emulate.abi import BarrierReport, MbarrierWait, Report, WaitReport, text_of
from tmaasync.trace.lanes import warp_names

_DONE = {"full": "filled", "empty": "released"}

_FIRST_PARITY = "a consumer's first wait names parity 0, a producer's 1"

_Block = tuple[int, int, int]


class Arrivals:
    """Actual and expected arrivals on the mbarriers of a cluster.

    A warp is expected on a barrier of a ring if it has used any stage in that role: the producer
    waits on ``empty`` and arrives on ``full``; a consumer does the opposite. If ``consumer 0`` was
    seen, warps with the same role and another number, such as ``consumer 1``, are expected too.
    """

    def __init__(self, report: Report, name_of: Callable[[int], str | None]) -> None:
        self._warps = report.all_warps()
        self._barriers = report.all_barriers()
        self._name_of = name_of

    def late(self, waiting: WaitReport) -> str | None:
        """Return a sentence about what a wait is missing; None if unknown."""
        barrier = waiting.mbarrier
        own = self._report_of(barrier)
        # The report has the barriers of one cluster.
        if own is None or not barrier.missing_arrivals:
            return None
        missing = self._missing(waiting, own)
        hint = self._too_few_counted(own) or _unseen(barrier)
        return "; ".join(filter(None, (missing, hint))) or None

    def _report_of(self, barrier: MbarrierWait) -> BarrierReport | None:
        return next((each for each in self._barriers if _is_same(each, barrier)), None)

    def _missing(self, waiting: WaitReport, own: BarrierReport) -> str | None:
        """Return a sentence about the warps whose arrivals a wait is missing."""
        barrier = waiting.mbarrier
        missing, part = barrier.missing_arrivals, self._part(barrier)
        arrived = own.arrived.listed()
        if elsewhere := self._elsewhere(own):
            return elsewhere
        expected = self._with_peers({*own.arrivers.listed(), *self._of_ring(own, part)})
        late = sorted(expected - {*arrived})
        home = waiting.block.sides
        # A warp arrives once, or once per lane; more late warps than arrivals would be a guess.
        is_first = not arrived and self._is_never_filled(own, part)
        hint = ": a producer's first wait names parity 1" if is_first else ""
        if late and len(late) <= missing:
            return self._sentence(late, home, part, barrier.missing_bytes < 0) + hint
        if arrived:
            done = "arrived" if part is None else _done(part)
            came = f"{own.count - missing} of the {own.count} arrivals that init() counts"
            return f"only {self._described(arrived, home)} {done}, with {came}"
        if part is not None:
            return f"no warp has {_done(part)}{hint}"
        if own.phase or own.arrivers.listed() or barrier.missing_bytes < 0:
            return None
        return f"nothing has arrived on it: {_FIRST_PARITY}"

    def _elsewhere(self, own: BarrierReport) -> str | None:
        """Name a peer's barrier that got all arrivals of this one, and that nobody waits for."""
        for other in self._barriers if not own.arrivers.listed() else ():
            is_peers = other.offset == own.offset and other.block.sides != own.block.sides
            if is_peers and other.arrivers.listed() and not other.waited.listed():
                who = self._described(other.arrivers.listed(), own.block.sides)
                return (
                    f"nothing has arrived on it; {who} arrived on the one of block "
                    f"{other.block.sides}, for which nobody waits: arrive on the waiting CTA's"
                )
        return None

    def _too_few_counted(self, own: BarrierReport) -> str | None:
        """Name the barrier that releases the stage, if its phases run ahead of the stage's."""
        part = self._part(own)
        for other in self._barriers:
            found = self._part(other)
            is_near = other.block.sides == own.block.sides
            is_sibling = part and found and (part.ring, part.stage) == (found.ring, found.stage)
            runs_ahead = other.phase > own.phase
            if is_near and is_sibling and runs_ahead and other.arriving_threads > other.count:
                return (
                    f"init() counts {other.count} arrivals on {self._name_of(other.offset)}, and "
                    f"{other.arriving_threads} threads arrive there"
                )
        return None

    def _of_ring(self, own: BarrierReport, part: RingPart | None) -> Iterable[int]:
        """Yield the warps that have used this barrier's role on any stage of its ring."""
        if part is None:
            return
        for other in self._barriers:
            found = self._part(other)
            is_near = other.block.sides == own.block.sides
            if is_near and found is not None and found.ring == part.ring:
                yield from (
                    other.arrivers if found.member == part.member else other.waited
                ).listed()

    def _is_never_filled(self, own: BarrierReport, part: RingPart | None) -> bool:
        """Return whether the barrier releases a stage on which nobody has arrived as filled."""
        if part is None or part.member != "empty":
            return False
        full = [
            other
            for other in self._barriers
            if other.block.sides == own.block.sides
            and (found := self._part(other)) is not None
            and (found.member, found.ring, found.stage) == ("full", part.ring, part.stage)
        ]
        return bool(full) and not any(one.arrivers.listed() for one in full)

    def _part(self, barrier: BarrierReport | MbarrierWait) -> RingPart | None:
        part = ring_part(self._name_of(barrier.offset))
        return None if part is None or part.member not in _DONE else part

    def _with_peers(self, warps: set[int]) -> set[int]:
        """Add the warps of the same blocks that have the same role with another number."""
        roles = {self._role(warp) for warp in warps}
        kinds = {_kind(role) for role in roles} - {None}
        others = (warp for warp in range(len(self._warps)) if self._role(warp) not in roles)
        return warps | {warp for warp in others if _kind(self._role(warp)) in kinds}

    def _role(self, warp: int) -> tuple[_Block, str]:
        facts = self._warps[warp]
        return facts.block.sides, text_of(facts.role)

    def _sentence(
        self, late: list[int], home: _Block, part: RingPart | None, is_surplus: bool
    ) -> str:
        have = "have" if len(late) > 1 and not self._is_one_role(late) else "has"
        ended = f"{have} ended and " if all(self._warps[x].has_ended for x in late) else ""
        who = self._described(late, home)
        if part is None:
            return f"{who} {ended}{have} yet to arrive"
        done = f"expected the bytes of {part.stage_name}" if is_surplus else _done(part)
        return f"{who} {ended}{have} not {done}"

    def _is_one_role(self, warps: list[int]) -> bool:
        roles = set(map(self._role, warps))
        return len(roles) == 1 and bool(self._warps[warps[0]].role)

    def _described(self, warps: Iterable[int], home: _Block) -> str:
        """Name warps by role, and by block if it is not the waiting thread's block."""
        groups: dict[tuple[_Block, str], list[int]] = {}
        for warp in sorted(warps):
            groups.setdefault(self._role(warp), []).append(self._warps[warp].warp)
        texts = []
        for (block, role), numbers in groups.items():
            where = "" if block == home else f" of block {block}"
            names = f"{warp_names(numbers)}{where}"
            texts.append(f"{role} ({names})" if role else names)
        return _joined(texts)


def _unseen(barrier: MbarrierWait) -> str | None:
    """Name a complete phase that no wait has seen, as waits name another parity."""
    if barrier.observed >= barrier.phase:
        return None
    rule = _FIRST_PARITY if barrier.observed == 0 else "the parity alternates with each phase"
    return f"no wait has seen its phase {barrier.observed}, which is complete: {rule}"


def _kind(role: tuple[_Block, str]) -> tuple[_Block, str] | None:
    """Return a block and a role without its number; None if the role has none."""
    block, name = role
    kind, _, number = name.rpartition(" ")
    return (block, kind) if kind and number.isdecimal() else None


def _done(part: RingPart) -> str:
    """Return the meaning of an arrival on the barrier, as in "released stage 2 of ring"."""
    return f"{_DONE[part.member]} {part.stage_name}"


def _joined(texts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _is_same(entry: BarrierReport, barrier: MbarrierWait) -> bool:
    return bool(entry.offset == barrier.offset and entry.block.sides == barrier.block.sides)
