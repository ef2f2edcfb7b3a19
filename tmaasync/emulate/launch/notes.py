"""Notes of the rules that a launch broke and went on."""

from __future__ import annotations

import logging

from tmaasync.emulate.abi import RULE_NAMES
from tmaasync.emulate.launch.map_owners import keep_maps
from tmaasync.emulate.launch.parameters import Parameters
from tmaasync.emulate.report.words import Facts, Words
from tmaasync.emulate.rules import RULES, bits_of

_LOG = logging.getLogger("tmaasync")
_NOTED: set[tuple[str, int, int]] = set()  # of rules that no launch was asked to relax


def heed_notes(facts: Facts, parameters: Parameters, keep: object) -> None:
    """Log the rules that a launch broke, and keep what the runtime knows of its maps.

    ``keep`` is what the launch keeps alive: its arguments and more.
    """
    notes = parameters.numbers.notes.contents
    if notes.broken & 1:
        keep_maps(facts.program.runtime, keep if isinstance(keep, tuple) else (), facts.arrays)
        notes.broken &= ~1
    if notes.broken:
        _log_notes(facts, parameters)


def _log_notes(facts: Facts, parameters: Parameters) -> None:
    """Log a line for each broken rule, and clear the notes.

    A rule that is only noted by default is logged once per line of a kernel.
    """
    words = Words(facts.program, facts.config.shared_bytes)
    notes = parameters.numbers.notes.contents
    asked = bits_of(parameters.schedule.tolerate or ())
    broken, notes.broken = notes.broken, 0
    for name, what in RULES.items():
        rule = RULE_NAMES.index(name)
        note = notes.note[rule]
        count, note.count = note.count, 0
        key = (str(facts.program.path), rule, note.address)
        if not broken >> rule & 1 or (key in _NOTED and not asked >> rule & 1):
            continue
        _NOTED.add(key)
        kernel = facts.program.name
        text = _text(kernel, name, count, words.line(note.address), what)
        _LOG.warning(text, extra={"kernel": kernel})


def _text(kernel: str, rule: str, count: int, line: str | None, what: str) -> str:
    times = "once" if count == 1 else f"{count} times"
    at = "" if line is None else f", first at {line}"
    return f"tmaasync: {kernel}: {what} ({times}{at}). [rule: {rule}]"
