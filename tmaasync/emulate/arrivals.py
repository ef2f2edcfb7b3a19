"""Infer the warps that a hung wait is missing from the earlier arrivals in its cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from tmaasync._source_names import RingPart, ring_part
from tmaasync.trace.lanes import warp_names

__all__ = ["Arrivals"]

_NUMBER = re.compile(r" \d+$")
_DEEDS = {"full": "filled", "empty": "released"}


class Arrivals:
    """Actual and expected arrivals on the mbarriers of a cluster.

    A warp is expected on a barrier of a ring if it has used any stage in that role: the producer
    waits on ``empty`` and arrives on ``full``; a consumer does the opposite. If ``consumer 0`` was
    seen, warps with the same role and another number, such as ``consumer 1``, are expected too.
    """

    def __init__(self, report: dict[str, Any], name_of: Callable[[int], str | None]) -> None:
        self._warps = report["warps"]
        self._barriers = report["barriers"]
        self._name_of = name_of

    def late(self, waiting: dict[str, Any]) -> str | None:
        """Return a sentence about the warps that a wait is missing; None if unknown."""
        barrier = waiting["barrier"]
        missing, part = barrier["missing_arrivals"], self._part(barrier)
        own = next(each for each in self._barriers if _is_same(each, barrier))
        if not missing:
            return None
        expected = self._with_peers({*own["arrivers"], *self._of_ring(own, part)})
        late = sorted(expected - {*own["arrived"]})
        home = waiting["block"]
        # A warp arrives once, or once per lane; more late warps than arrivals would be a guess.
        if late and len(late) <= missing:
            return self._sentence(late, home, part, barrier["missing_bytes"] < 0)
        if part is None:
            return None
        if own["arrived"]:
            return f"only {self._described(own['arrived'], home)} {_done(part)}"
        return f"no warp has {_done(part)}"

    def _of_ring(self, own: dict[str, Any], part: RingPart | None) -> Iterable[int]:
        """Yield the warps that have used this barrier's role on any stage of its ring."""
        if part is None:
            return
        for other in self._barriers:
            found = self._part(other)
            if other["block"] == own["block"] and found is not None and found.ring == part.ring:
                yield from other["arrivers" if found.member == part.member else "waited"]

    def _part(self, barrier: dict[str, Any]) -> RingPart | None:
        part = ring_part(self._name_of(barrier["offset"]))
        return None if part is None or part.member not in _DEEDS else part

    def _with_peers(self, warps: set[int]) -> set[int]:
        """Add the warps of the same blocks that have the same role with another number."""
        roles = {self._role(warp) for warp in warps}
        kinds = {_kind(role) for role in roles} - {None}
        others = (warp for warp in range(len(self._warps)) if self._role(warp) not in roles)
        return warps | {warp for warp in others if _kind(self._role(warp)) in kinds}

    def _role(self, warp: int) -> tuple[tuple[int, ...], str]:
        facts = self._warps[warp]
        return tuple(facts["block"]), facts["role"]

    def _sentence(
        self, late: list[int], home: list[int], part: RingPart | None, is_surplus: bool
    ) -> str:
        have = "have" if len(late) > 1 and not self._is_one_role(late) else "has"
        ended = f"{have} ended and " if all(self._warps[x]["has_ended"] for x in late) else ""
        who = self._described(late, home)
        if part is None:
            return f"{who} {ended}{have} yet to arrive"
        done = f"expected the bytes of {part.stage_name}" if is_surplus else _done(part)
        return f"{who} {ended}{have} not {done}"

    def _is_one_role(self, warps: list[int]) -> bool:
        roles = {(*self._warps[warp]["block"], self._warps[warp]["role"]) for warp in warps}
        return len(roles) == 1 and bool(self._warps[warps[0]]["role"])

    def _described(self, warps: Iterable[int], home: list[int]) -> str:
        """Name warps by role, and by block if it is not the waiting thread's block."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for warp in sorted(warps):
            facts = self._warps[warp]
            groups.setdefault((*facts["block"], facts["role"]), []).append(facts["warp"])
        texts = []
        for (*block, role), numbers in groups.items():
            where = "" if block == home else f" of block {tuple(block)}"
            names = f"{warp_names(numbers)}{where}"
            texts.append(f"{role} ({names})" if role else names)
        return _joined(texts)


def _kind(role: tuple[tuple[int, ...], str]) -> tuple[tuple[int, ...], str] | None:
    """Return a block and a role without its number; None if the role has none."""
    block, name = role
    kind, numbers = _NUMBER.subn("", name)
    return (block, kind) if numbers else None


def _done(part: RingPart) -> str:
    """Return the meaning of an arrival on the barrier, as in "released stage 2 of ring"."""
    return f"{_DEEDS[part.member]} {part.stage_name}"


def _joined(texts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _is_same(entry: dict[str, Any], barrier: dict[str, Any]) -> bool:
    return bool(entry["offset"] == barrier["offset"] and entry["block"] == barrier["block"])
