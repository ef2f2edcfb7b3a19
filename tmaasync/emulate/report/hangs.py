"""Deadlocks and timeouts: the threads that wait, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmaasync._source.names import ring_part
from tmaasync.emulate.abi import (
    Activity,
    MbarrierWait,
    Report,
    ReportKind,
    WaitKind,
    WaitReport,
    text_of,
)
from tmaasync.emulate.chips.occupancy import residency
from tmaasync.emulate.include_path import EMULATOR_DIR
from tmaasync.emulate.report.arrivals import Arrivals
from tmaasync.emulate.report.words import Facts, Words
from tmaasync.errors import AwaitedSignal, EmulatedDeadlock, EmulatedTimeout, WaitingThreads

COPY_ENGINE = EMULATOR_DIR / "launch" / "copy_engine.cu"
"""What emulated streams do for `Signals`."""

_ACTIVITIES = {
    Activity.READY: "is ready to run",
    Activity.RUNNING: "runs, and never waits",
    Activity.UNWRITTEN_READ: "a read of shared memory that nothing has written",
    Activity.VOLATILE_READ: "a volatile read",
    Activity.REPEATED_READ: "a read, again and again",
}


def hang(
    facts: Facts, several: Sequence[Words], report: Report, waits: Sequence[WaitReport]
) -> EmulatedTimeout | EmulatedDeadlock:
    """Return the exception for a deadlock or a timeout of the launch with these facts."""
    program = facts.program
    arrivals = Arrivals(report, several[report.launch].name)
    waiting = tuple(
        _waiting(several[wait.launch], arrivals if wait.launch == report.launch else None, wait)
        for wait in waits
    )
    if report.kind == ReportKind.TIMEOUT:
        looping = (report.block.sides, report.thread) if report.has_thread else None
        budget = None if report.is_endless else facts.budget_seconds
        return EmulatedTimeout(program.name, budget, looping, waiting)
    if not report.resident:
        return EmulatedDeadlock(program.name, waiting)
    limit = residency(program.chip, facts.config, program.registers, program.static_bytes)
    return EmulatedDeadlock(program.name, waiting, (report.resident, report.grid), limit)


def _waiting(words: Words, arrivals: Arrivals | None, wait: WaitReport) -> WaitingThreads:
    copy_engine = COPY_ENGINE.read_text(encoding="utf-8")
    of_stream = wait.kind == WaitKind.SIGNAL and words.program.source.text == copy_engine
    instruction = text_of(wait.instruction) or _ACTIVITIES[Activity(wait.activity)]
    if of_stream:
        instruction = "Signals.stream_wait"
    return WaitingThreads(
        block=wait.block.sides,
        threads=tuple(wait.threads.listed()),
        instruction=instruction + _of_polled(words, wait),
        source=None if of_stream else words.line(wait.address),
        role=text_of(wait.role) or None,
        device=words.device,
        of_stream=of_stream,
        **_awaited(words, arrivals, wait),
    )


def _awaited(words: Words, arrivals: Arrivals | None, wait: WaitReport) -> dict[str, Any]:
    """Return the facts about the barrier or the signal of a wait."""
    if wait.kind == WaitKind.MBARRIER:
        late = None if arrivals is None else arrivals.late(wait)
        return {"late": late, **_awaited_mbarrier(words, wait.mbarrier)}
    if wait.kind == WaitKind.NAMED_BARRIER:
        named = wait.named
        return {"barrier_number": named.number, "missing_arrivals": named.missing_arrivals}
    if wait.kind == WaitKind.SIGNAL:
        of = wait.signal
        return {
            "signal": AwaitedSignal(rank=of.rank, number=of.number, epoch=of.epoch, seen=of.seen)
        }
    return {}


def _awaited_mbarrier(words: Words, barrier: MbarrierWait) -> dict[str, Any]:
    name = words.name(barrier.offset) or words.barrier_of_module(barrier)
    part = ring_part(name)
    buffers = map(words.name, barrier.landings.listed())
    return {
        "barrier_name": name,
        "barrier_offset": barrier.offset,
        "barrier_block": barrier.block.sides,
        "phase": barrier.phase,
        "missing_arrivals": barrier.missing_arrivals,
        "missing_bytes": barrier.missing_bytes,
        "expected_bytes": barrier.expected_bytes,
        "delivered_bytes": barrier.expected_bytes - barrier.missing_bytes,
        "ring": None if part is None else part.ring or None,
        "stage": None if part is None else part.stage,
        "delivered_to": tuple(dict.fromkeys(filter(None, buffers))),
    }


def _of_polled(words: Words, wait: WaitReport) -> str:
    """Return the name of the address that a thread polls, if any."""
    name = words.place_name(wait.polled_space, wait.polled) if wait.is_polling else None
    return f" of {name}" if name else ""
