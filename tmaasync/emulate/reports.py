"""Turn the runtime's report of a failed launch into an exception with names and lines."""

from __future__ import annotations

import functools
import json
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
from tmaasync._symbols import variables_of
from tmaasync.emulate.abi import STATIC_ALIGNMENT, Operation
from tmaasync.emulate.arrivals import Arrivals
from tmaasync.emulate.build import EmulatedProgram
from tmaasync.emulate.debug_info import debug_info
from tmaasync.emulate.dialect import in_words_of
from tmaasync.emulate.estimate import LaunchEstimate
from tmaasync.emulate.extents import Extent, GlobalNames
from tmaasync.emulate.occupancy import residency
from tmaasync.emulate.peer_causes import BETWEEN_STREAMS, cause_between_devices
from tmaasync.emulate.race_causes import RacingPair, cause_in_a_kernel
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
from tmaasync.trace.events import NameOf, offset_name
from tmaasync.trace.rings import ring_part

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
# A place in a reason: an address in shared memory or in the code, as runtime/words.hpp writes it,
# or the constant that states the size of the dynamic shared memory.
_ADDRESS = re.compile(r"\{(barrier|offset|bytes|line|stage|place|constant) (\d+)\}")

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
    size: LaunchEstimate
    arrays: Sequence[Iterable[Extent]]
    # By name, that are no arguments.
    others: Mapping[str, Extent] = field(default_factory=dict)


def error_of(program: EmulatedProgram, facts: Facts, report: str) -> TMAError:
    """Return the exception for the runtime's report of one launch."""
    return error_of_several([(program, facts, None)], report)


def error_of_several(
    launches: Sequence[tuple[EmulatedProgram, Facts, int | None]], report: str
) -> TMAError:
    """Return the exception for the runtime's report of launches that ran together.

    Args:
        launches: The program, the facts and the emulated device of each.
        report: The runtime's JSON.

    Raises:
        KeyboardInterrupt: Ctrl-C stopped them.
    """
    record = json.loads(report)
    if record["kind"] == "interrupted":  # by Ctrl-C
        raise KeyboardInterrupt
    if record["kind"] == "memory":
        return LaunchError(
            "grid: this machine has no memory or no mappings left for the launch: "
            f"{launches[0][1].size}. Launch smaller blocks or clusters, or run fewer at once with "
            "emulate.scheduled(workers=1)."
        )
    several = [
        _Words(program, facts.config.shared_bytes, facts.arrays, device, facts.others)
        for program, facts, device in launches
    ]
    if record["kind"] == "race":
        return _race(several, record)
    program, facts, _ = launches[record["launch"]]
    words = several[record["launch"]]
    _name_caller(words, record)
    if record["kind"] == "fault":
        return EmulatedFault(
            program.name,
            in_words_of(program.source, words.with_names(record["reason"])),
            tuple(record["block"]),
            record["thread"],
            words.line(record["address"]),
            record["role"] or None,
            words.device,
        )
    own = [wait for wait in record["waits"] if wait["launch"] == record["launch"]]
    arrivals = Arrivals({**record, "waits": own}, words.name)
    waits = tuple(
        _waiting(several[wait["launch"]], arrivals if wait in own else None, wait)
        for wait in record["waits"]
    )
    if record["kind"] == "timeout":
        looping = (tuple(record["block"]), record["thread"]) if "thread" in record else None
        budget = None if record.get("is_endless") else facts.budget_seconds
        return EmulatedTimeout(program.name, budget, looping, waits)
    if "resident" not in record:
        return EmulatedDeadlock(program.name, waits)
    limit = residency(facts.config, program.registers, program.static_bytes)
    return EmulatedDeadlock(program.name, waits, (record["resident"], record["grid"]), limit)


def _name_caller(words: _Words, record: dict[str, Any]) -> None:
    """Replace an interrupted address without a line by its innermost caller with a line."""
    address = record.get("address", 0)
    if not record.get("callers") or words.line(address):
        return
    caller = next(filter(words.line, record["callers"]), address)
    for place in (record, *record["waits"]):
        if place["address"] == address and place["launch"] == record["launch"]:
            place["address"] = caller


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

    def with_names(self, reason: str) -> str:
        """Replace addresses in the reason by names of barriers, buffers and arrays."""
        named = _ADDRESS.sub(lambda found: self._described(found[1], int(found[2])), reason)
        return self.globals.in_text(named)

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

    def _described(self, kind: str, offset: int) -> str:
        if kind == "line":
            line = self.line(offset)
            return "" if line is None else f" at {line}"
        if kind == "constant":
            constant = f"{function_name(self.program.name)}_shared_bytes"
            return f'`extern "C" __device__ const int {constant}`'
        name = self.name(offset)
        if kind == "barrier":
            return name or self._unnamed_barrier(offset)
        if kind == "place" and name is not None:
            return name
        if kind == "stage":
            full = self.sibling(name, "full")
            return "" if full is None else f": {full} ends the loads into the stage"
        address = f"shared {'bytes' if kind == 'bytes' else 'offset'} {offset}"
        return address if name is None else f"{address} ({name})"


_BARRIER_BYTES = 8
_ELEMENT = re.compile(r"(.*)\[(\d+)\]")
_MAX_BARRIERS_BEYOND = 16  # an mbarrier farther away is not a bad index of the array


# --- deadlocks --------------------------------------------------------------------------------


def _waiting(words: _Words, arrivals: Arrivals | None, record: dict[str, Any]) -> WaitingThreads:
    barrier = record.get("barrier", {})
    home = barrier.get("block")
    offset = barrier.get("offset")
    name = None if offset is None else words.name(offset)
    part = ring_part(name)
    buffers = (words.name(start) for start in barrier.get("landings", ()))
    copy_engine = COPY_ENGINE.read_text(encoding="utf-8")
    of_stream = "signal" in record and words.program.source.text == copy_engine
    instruction = "Signals.stream_wait" if of_stream else record["instruction"]
    return WaitingThreads(
        block=tuple(record["block"]),
        threads=tuple(record["threads"]),
        instruction=instruction + _of_polled(words, record.get("polled")),
        source=None if of_stream else words.line(record["address"]),
        barrier_name=name,
        barrier_offset=offset,
        barrier_number=barrier.get("number"),
        barrier_block=None if home is None else tuple(home),
        phase=barrier.get("phase"),
        missing_arrivals=barrier.get("missing_arrivals"),
        missing_bytes=barrier.get("missing_bytes"),
        expected_bytes=barrier.get("expected_bytes"),
        delivered_bytes=barrier.get("delivered_bytes"),
        role=record["role"] or None,
        ring=None if part is None else part.ring or None,
        stage=None if part is None else part.stage,
        delivered_to=tuple(dict.fromkeys(filter(None, buffers))),
        late=None if offset is None or arrivals is None else arrivals.late(record),
        signal=AwaitedSignal(**record["signal"]) if "signal" in record else None,
        device=words.device,
        of_stream=of_stream,
    )


def _of_polled(words: _Words, polled: dict[str, Any] | None) -> str:
    """Return the name of the address that a thread polls, if any."""
    name = polled and _place_name(words, polled["memory"], polled["start"])
    return f" of {name}" if name else ""


# --- races ------------------------------------------------------------------------------------


def _race(several: Sequence[_Words], record: dict[str, Any]) -> EmulatedRace:
    first, second = (
        _access(several[record[which]["launch"]], record[which]) for which in ("first", "second")
    )
    words = several[record["second"]["launch"]]
    known = frozenset(record["facts"])
    if "is_between_devices" in known:
        cause = cause_between_devices(first, second, known)
    elif record["first"]["launch"] != record["second"]["launch"]:
        cause = BETWEEN_STREAMS
    else:
        empty = words.sibling(second.barrier_name, "empty")
        cause = cause_in_a_kernel(RacingPair(first, second, record["memory"], known), empty)
        cause = in_words_of(words.program.source, cause)
    shared = record["first"]["bytes"] & record["second"]["bytes"]
    start = record["start"] + ((shared & -shared).bit_length() - 1 if shared else 0)
    return EmulatedRace(
        words.program.name,
        memory=record["memory"],
        start=start,
        name=_place_name(words, record["memory"], start),
        first=first,
        second=second,
        cause=cause,
    )


def _place_name(words: _Words, memory: str, start: int) -> str | None:
    if memory == "global":
        return words.globals.name(start)
    return words.name(start) if memory == "shared" else None


def _access(words: _Words, record: dict[str, Any]) -> EmulatedAccess:
    return EmulatedAccess(
        block=tuple(record["block"]),
        thread=record["thread"],
        operation=_OPERATIONS[record["operation"]],
        is_write=record["writes"],
        source=words.line(record["address"]),
        role=record.get("role") or None,
        barrier_name=words.name(record["barrier"]) if "barrier" in record else None,
        device=words.device,
    )
