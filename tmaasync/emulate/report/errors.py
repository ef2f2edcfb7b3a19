"""Turn the runtime's report of a failed launch into an exception with names and lines."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tmaasync._driver import LaunchConfig
from tmaasync._entries import function_name
from tmaasync._forks import cached_property
from tmaasync._hardware import MAX_SHARED_BYTES
from tmaasync._source_names import ring_part
from tmaasync._symbols import variables_of
from tmaasync.emulate.abi import (
    STATIC_ALIGNMENT,
    AccessReport,
    MbarrierWait,
    MentionKind,
    Operation,
    RaceFact,
    Report,
    ReportKind,
    Space,
    WaitKind,
    WaitReport,
    text_of,
)
from tmaasync.emulate.chips.occupancy import residency
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.frontend.cpp.build import EmulatedProgram
from tmaasync.emulate.report.arrivals import Arrivals
from tmaasync.emulate.report.debug_info import debug_info
from tmaasync.emulate.report.dialect import in_words_of
from tmaasync.emulate.report.global_names import GlobalNames
from tmaasync.emulate.report.peer_causes import BETWEEN_STREAMS, cause_between_devices
from tmaasync.emulate.report.race_causes import RacingPair, cause_in_a_kernel
from tmaasync.errors import (
    AwaitedSignal,
    EmulatedAccess,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    EmulatedTimeout,
    LaunchError,
    TMAError,
    WaitingThreads,
)
from tmaasync.trace.events import NOTHING, NameOf, offset_name

__all__ = ["Facts", "error_of", "error_of_several", "shared_names"]

_OPERATIONS = {
    Operation.READ: "ordinary read",
    Operation.WRITE: "ordinary write",
    Operation.ATOMIC: "atomic operation",
    Operation.STMATRIX: "stmatrix",
    Operation.TMA_LOAD: "TMA load",
    Operation.TMA_STORE: "TMA store",
    Operation.TMA_REDUCE: "TMA reduction",
    Operation.WGMMA: "wgmma",
    Operation.BARRIER_INIT: "mbarrier.init",
    Operation.BARRIER_USE: "mbarrier operation",
    Operation.REGISTERS: "use of registers",
    Operation.MAP_READ: "TMA's read of a tensor map",
    Operation.THREAD_COPY: "cp.async",
    Operation.TMA_PUSH: "TMA copy between CTAs",
    Operation.TMA_PUSH_REDUCE: "TMA reduction between CTAs",
    Operation.LDMATRIX: "ldmatrix",
    Operation.BLOCK_ATOMIC: "atomic operation of one block",
}

COPY_ENGINE = Path(__file__).with_name("copy_engine.cu")
"""What emulated streams do for `Signals`."""


def _variables(program: EmulatedProgram) -> Mapping[str, Extent]:
    """Return the extents of the kernel's variables in constant and global memory."""
    found = variables_of(program.path) if program.path.is_file() else {}
    return {
        name: Extent(program.address_of(one.address), 0, one.size_bytes)
        for name, one in found.items()
    }


@dataclass(frozen=True, slots=True)
class Facts:
    """The host's knowledge of a failed launch."""

    config: LaunchConfig
    budget_seconds: float
    size: str  # of the launch, in words
    arrays: Sequence[Iterable[Extent]]
    # By name, that are no arguments.
    others: Mapping[str, Extent] = field(default_factory=dict)


def error_of(program: EmulatedProgram, facts: Facts, report: Report) -> TMAError:
    """Return the exception for the runtime's report of one launch."""
    return error_of_several([(program, facts, None)], report)


def error_of_several(
    launches: Sequence[tuple[EmulatedProgram, Facts, int | None]], report: Report
) -> TMAError:
    """Return the exception for the runtime's report of launches that ran together.

    Args:
        launches: The program, the facts and the emulated device of each.
        report: The runtime's report.

    Raises:
        KeyboardInterrupt: Ctrl-C stopped them.
    """
    if report.kind == ReportKind.INTERRUPTED:
        raise KeyboardInterrupt
    if report.kind == ReportKind.MEMORY:
        return LaunchError(
            "grid: this machine has no memory or no mappings left for the launch: "
            f"{launches[0][1].size}. Launch smaller blocks or clusters, or run fewer at once with "
            "emulate.scheduled(workers=1)."
        )
    several = [
        _Words(program, facts.config.shared_bytes, facts.arrays, device, facts.others)
        for program, facts, device in launches
    ]
    if report.kind == ReportKind.RACE:
        return _race(several, report)
    program, facts, _ = launches[report.launch]
    words, waits = several[report.launch], report.all_waits()
    _name_caller(words, report, waits)
    if report.kind == ReportKind.FAULT:
        return EmulatedFault(
            program.name,
            in_words_of(program.source, words.reason(report)),
            report.block.sides,
            report.thread,
            words.line(report.address),
            text_of(report.role) or None,
            words.device,
        )
    arrivals = Arrivals(report, words.name)
    waiting = tuple(
        _waiting(several[wait.launch], arrivals if wait.launch == report.launch else None, wait)
        for wait in waits
    )
    return _hang(program, facts, report, waiting)


def _hang(
    program: EmulatedProgram, facts: Facts, report: Report, waits: tuple[WaitingThreads, ...]
) -> EmulatedTimeout | EmulatedDeadlock:
    if report.kind == ReportKind.TIMEOUT:
        looping = (report.block.sides, report.thread) if report.has_thread else None
        budget = None if report.is_endless else facts.budget_seconds
        return EmulatedTimeout(program.name, budget, looping, waits)
    if not report.resident:
        return EmulatedDeadlock(program.name, waits)
    limit = residency(facts.config, program.registers, program.static_bytes)
    return EmulatedDeadlock(program.name, waits, (report.resident, report.grid), limit)


def _name_caller(words: _Words, report: Report, waits: Sequence[WaitReport]) -> None:
    """Replace an interrupted address without a line by its innermost caller with a line."""
    address, callers = report.address, report.all_callers()
    if not callers or words.line(address):
        return
    report.address = next(filter(words.line, callers), address)
    for wait in waits:
        if wait.address == address and wait.launch == report.launch:
            wait.address = report.address


# --- names ------------------------------------------------------------------------------------


def shared_names(program: EmulatedProgram, shared_bytes: int) -> NameOf:
    """Return the source's names for offsets in the kernel's shared memory."""
    words = _Words(program, shared_bytes)
    return functools.cache(lambda offset: words.name(offset) or offset_name(offset))


_OWN_VARIABLES = ("first_variable", "dynamic_memory")  # of cuda.hpp


class _Words:
    """The names and lines of one kernel's source."""

    def __init__(
        self,
        program: EmulatedProgram,
        shared_bytes: int,
        arrays: Sequence[Iterable[Extent]] | None = None,
        device: int | None = None,
        others: Mapping[str, Extent] = MappingProxyType({}),
    ) -> None:
        self.program = program
        self.device = device  # ordinal in an emulated world
        self._info = debug_info(program.path, program.source.text)
        self._arrays = arrays
        self._others = others
        self._static = -(-shared_bytes // STATIC_ALIGNMENT) * STATIC_ALIGNMENT

    def line(self, address: int) -> str | None:
        """Return the line in the kernel's source, as in ``gemm.cu:120``."""
        if not address:
            return None
        return self._info.source_line(address, self.program.source.name)

    def name(self, offset: int) -> str | None:
        """Return the source's name for this offset in shared memory."""
        if offset < self._static:
            return self._info.shared_name(offset)
        # Static variables keep their order, without the dynamic array among them.
        static = offset - self._static
        offsets = (static, static + MAX_SHARED_BYTES)
        names = filter(None, map(self._info.static_shared_name, offsets))
        own = next((name for name in names if not name.startswith(_OWN_VARIABLES)), None)
        return own or self._info.shared_name(offset)  # beyond the launch's dynamic memory

    @cached_property
    def globals(self) -> GlobalNames:
        """The names for addresses in global memory."""
        names = self._info.parameter_names(function_name(self.program.name))
        return GlobalNames(self._arrays, names, {**_variables(self.program), **self._others})

    def reason(self, report: Report) -> str:
        """Return a fault's reason, with the names of barriers, buffers, lines and arrays."""
        raw, parts, begin = report.reason, [], 0
        for mention in report.all_mentions():
            name = self._mentioned(MentionKind(mention.kind), mention.value)
            parts += [text_of(raw[begin : mention.at]), name]
            begin = mention.at
        return "".join((*parts, text_of(raw[begin:])))

    def sibling(self, name: str | None, member: str) -> str | None:
        """Return another member of the stage of this name; None if there is none."""
        part = ring_part(name)
        other = None if part is None else part.sibling(member)
        return other if other is not None and self._info.has_shared_member(other) else None

    def _unnamed_barrier(self, offset: int) -> str:
        """Name an unnamed offset by the mbarriers before it: "empty[3] of 3"."""
        unnamed = f"the mbarrier at shared offset {offset}"
        for steps in range(1, _MAX_BARRIERS_BEYOND):
            name = self.name(offset - steps * _BARRIER_BYTES)
            if name is None:
                continue
            array = _ELEMENT.fullmatch(name)
            if array is None:
                return f"{unnamed}, {steps * _BARRIER_BYTES} bytes after {name},"
            last = int(array[2])
            return f"{array[1]}[{last + steps}] of {last + 1}"
        return unnamed

    def _mentioned(self, kind: MentionKind, value: int) -> str:
        if kind == MentionKind.LINE:
            line = self.line(value)
            return "" if line is None else f" at {line}"
        if kind == MentionKind.GLOBAL_NAME:
            place = self.globals.place(value)
            return "" if place is None else f" ({place})"
        if kind == MentionKind.SIZE_CONSTANT:
            constant = f"{function_name(self.program.name)}_shared_bytes"
            return f'`extern "C" __device__ const int {constant}`'
        return self._mentioned_shared(kind, value)

    def _mentioned_shared(self, kind: MentionKind, offset: int) -> str:
        name = self.name(offset)
        if kind == MentionKind.BARRIER:
            return name or self._unnamed_barrier(offset)
        if kind == MentionKind.SHARED_NAME and name is not None:
            return name
        if kind == MentionKind.FULL_BARRIER:
            full = self.sibling(name, "full")
            return "" if full is None else f": {full} ends the loads into the stage"
        address = f"shared {'bytes' if kind == MentionKind.SHARED_BYTES else 'offset'} {offset}"
        return address if name is None else f"{address} ({name})"


_BARRIER_BYTES = 8
_ELEMENT = re.compile(r"(.*)\[(\d+)\]")
_MAX_BARRIERS_BEYOND = 16  # an mbarrier farther away is not a bad index of the array


# --- deadlocks --------------------------------------------------------------------------------


def _waiting(words: _Words, arrivals: Arrivals | None, wait: WaitReport) -> WaitingThreads:
    copy_engine = COPY_ENGINE.read_text(encoding="utf-8")
    of_stream = wait.kind == WaitKind.SIGNAL and words.program.source.text == copy_engine
    instruction = "Signals.stream_wait" if of_stream else text_of(wait.instruction)
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


def _awaited(words: _Words, arrivals: Arrivals | None, wait: WaitReport) -> dict[str, Any]:
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


def _awaited_mbarrier(words: _Words, barrier: MbarrierWait) -> dict[str, Any]:
    name = words.name(barrier.offset)
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


def _of_polled(words: _Words, wait: WaitReport) -> str:
    """Return the name of the address that a thread polls, if any."""
    name = _place_name(words, wait.polled_space, wait.polled) if wait.is_polling else None
    return f" of {name}" if name else ""


# --- races ------------------------------------------------------------------------------------


def _race(several: Sequence[_Words], report: Report) -> EmulatedRace:
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
        name=_place_name(words, race.space, start),
        first=first,
        second=second,
        cause=cause,
    )


def _place_name(words: _Words, space: int, start: int) -> str | None:
    if space == Space.GLOBAL:
        return words.globals.name(start)
    return words.name(start) if space == Space.SHARED else None


def _access(words: _Words, access: AccessReport) -> EmulatedAccess:
    return EmulatedAccess(
        block=access.block.sides,
        thread=access.thread,
        operation=_OPERATIONS[Operation(access.operation)],
        is_write=bool(access.is_write),
        source=words.line(access.address),
        role=text_of(access.role) or None,
        barrier_name=None if access.barrier == NOTHING else words.name(access.barrier),
        device=words.device,
    )
