"""Turn the runtime's report of a failed launch into an exception with names and lines."""

from __future__ import annotations

from collections.abc import Sequence

from tmaasync.emulate.abi import Report, ReportKind, WaitReport, text_of
from tmaasync.emulate.report.dialect import in_words_of
from tmaasync.emulate.report.hangs import hang
from tmaasync.emulate.report.races import race
from tmaasync.emulate.report.words import Facts, Words
from tmaasync.errors import EmulatedFault, LaunchError, TMAError

__all__ = ["error_of"]


def error_of(launches: Sequence[Facts], report: Report) -> TMAError:
    """Return the exception for the runtime's report of launches that ran together, or of one.

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
        Words(one.program, one.config.shared_bytes, one.arrays, one.device, one.others)
        for one in launches
    ]
    if report.kind == ReportKind.RACE:
        return race(several, report)
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
