"""Races: two accesses, the memory where they meet, and the cause."""

from __future__ import annotations

from collections.abc import Sequence

from tmaasync.emulate.abi import AccessReport, Operation, RaceFact, Report, Space, text_of
from tmaasync.emulate.report.dialect import in_words_of
from tmaasync.emulate.report.faults import OPERATIONS
from tmaasync.emulate.report.peer_causes import BETWEEN_STREAMS, cause_between_devices
from tmaasync.emulate.report.race_causes import RacingPair, cause_in_a_kernel
from tmaasync.emulate.report.words import Words
from tmaasync.errors import EmulatedAccess, EmulatedRace
from tmaasync.trace.events import NOTHING

__all__ = ["race"]


def race(several: Sequence[Words], report: Report) -> EmulatedRace:
    """Return the exception for a race between two accesses, of one or two launches."""
    race = report.race
    first, second = (_access(several[one.launch], one) for one in (race.first, race.second))
    words = several[race.second.launch]
    memory = Space(race.space).name.lower()
    known = frozenset(fact.name.lower() for fact in RaceFact if race.facts & fact)
    if race.facts & RaceFact.IS_BETWEEN_DEVICES:
        cause = cause_between_devices(first, second, known)
    elif race.first.launch != race.second.launch:
        cause = BETWEEN_STREAMS
    else:
        empty = words.sibling(second.barrier_name, "empty")
        cause = cause_in_a_kernel(RacingPair(first, second, memory, known), empty)
        cause = in_words_of(words.program.source, cause)
    shared = race.first.bytes & race.second.bytes
    start = race.start + ((shared & -shared).bit_length() - 1 if shared else 0)
    return EmulatedRace(
        words.program.name,
        memory=memory,
        start=start,
        name=words.place_name(race.space, start),
        first=first,
        second=second,
        cause=cause,
    )


def _access(words: Words, access: AccessReport) -> EmulatedAccess:
    return EmulatedAccess(
        block=access.block.sides,
        thread=access.thread,
        operation=OPERATIONS[Operation(access.operation)],
        is_write=bool(access.is_write),
        source=words.line(access.address),
        role=text_of(access.role) or None,
        barrier_name=None if access.barrier == NOTHING else words.name(access.barrier),
        device=words.device,
    )
