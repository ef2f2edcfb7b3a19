"""Turn the runtime's report of a failed launch into an exception with names and lines."""

from __future__ import annotations

from collections.abc import Sequence

from tmaasync.emulate.abi import (
    AccessReport,
    Operation,
    RaceFact,
    Report,
    ReportKind,
    Space,
    WaitReport,
    text_of,
)
from tmaasync.emulate.report.dialect import in_words_of
from tmaasync.emulate.report.faults import OPERATIONS
from tmaasync.emulate.report.hangs import hang
from tmaasync.emulate.report.peer_causes import BETWEEN_STREAMS, cause_between_devices
from tmaasync.emulate.report.quotes import quote
from tmaasync.emulate.report.race_causes import RacingPair, cause_in_a_kernel
from tmaasync.emulate.report.strays import with_stray
from tmaasync.emulate.report.words import Facts, Words
from tmaasync.emulate.rules import name_of
from tmaasync.errors import EmulatedAccess, EmulatedFault, EmulatedRace, LaunchError, TMAError
from tmaasync.trace.events import NOTHING


def error_of(launches: Sequence[Facts], report: Report) -> TMAError:
    """Return the exception for the runtime's report of launches that ran together, or of one.

    A note quotes the lines of the source that the report names, as the traceback shows it.

    Raises:
        KeyboardInterrupt: Ctrl-C stopped them.
    """
    if report.kind == ReportKind.INTERRUPTED:
        raise KeyboardInterrupt
    if report.kind == ReportKind.MEMORY:
        return LaunchError(
            "grid: this machine has no memory or no mappings left for the launch: "
            f"{launches[0].size}. Launch smaller blocks or clusters, or run fewer at once with "
            "emulate.scheduled(workers=1)."
        )
    several = [
        Words(one.program, one.config.shared_bytes, one.arrays, one.device, one.others, one.before)
        for one in launches
    ]
    error = _in_words(launches, several, report)
    quote(error, (words.program for words in several))
    return error


def _in_words(launches: Sequence[Facts], several: Sequence[Words], report: Report) -> TMAError:
    if report.kind == ReportKind.RACE:
        return _race(several, report)
    words, waits = several[report.launch], report.all_waits()
    _name_caller(words, report, waits)
    if report.kind == ReportKind.FAULT:
        return _fault(words, report)
    return hang(launches[report.launch], several, report, waits)


def _fault(words: Words, report: Report) -> EmulatedFault:
    return EmulatedFault(
        words.program.name,
        in_words_of(words.program.source, words.reason(report)),
        report.block.sides,
        report.thread,
        words.line(report.address),
        text_of(report.role) or None,
        words.device,
        name_of(report.rule),
    )


def _name_caller(words: Words, report: Report, waits: Sequence[WaitReport]) -> None:
    """Replace an interrupted address without a line by its innermost caller with a line."""
    address, callers = report.address, report.all_callers()
    if not callers or words.line(address):
        return
    report.address = next(filter(words.line, callers), address)
    for wait in waits:
        if wait.address == address and wait.launch == report.launch:
            wait.address = report.address


# --- races ------------------------------------------------------------------------------------


def _race(several: Sequence[Words], report: Report) -> EmulatedRace:
    """Return the exception for a race between two accesses, of one or two launches."""
    race = report.race
    first, second = (_accessed(several[one.launch], one) for one in (race.first, race.second))
    words = several[race.second.launch]
    memory = Space(race.space).name.lower()
    known = frozenset(fact.name.lower() for fact in RaceFact if race.facts & fact)
    if race.facts & RaceFact.IS_BETWEEN_DEVICES:
        cause = cause_between_devices(first, second, known)
    elif race.first.launch != race.second.launch:
        cause = BETWEEN_STREAMS
    else:
        empty = words.sibling(second.barrier_name, "empty")
        pair = RacingPair(first, second, memory, known)
        # The runtime knows a cause where the past of a barrier shows it.
        cause = words.reason(report) or cause_in_a_kernel(pair, empty)
        cause = in_words_of(words.program.source, cause)
    shared = race.first.bytes & race.second.bytes
    start = race.start + ((shared & -shared).bit_length() - 1 if shared else 0)
    if race.space == Space.GLOBAL:
        source = words.program.source
        cause = with_stray(cause, words.globals, start, (first, second), source)
    return EmulatedRace(
        words.program.name,
        memory=memory,
        start=start,
        name=words.place_name(race.space, start),
        first=first,
        second=second,
        cause=cause,
        rule=name_of(report.rule),
    )


def _accessed(words: Words, access: AccessReport) -> EmulatedAccess:
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
