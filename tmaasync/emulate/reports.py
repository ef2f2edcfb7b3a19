"""From the runtime's report of a failed launch to an exception with names and lines."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmaasync._driver import LaunchConfig
from tmaasync._entries import function_name
from tmaasync._hardware import MAX_SHARED_BYTES
from tmaasync._symbols import variables_of
from tmaasync.emulate.arrivals import Arrivals
from tmaasync.emulate.build import EmulatedProgram
from tmaasync.emulate.debug_info import debug_info, source_frame
from tmaasync.emulate.dialect import in_words_of
from tmaasync.emulate.estimate import LaunchEstimate
from tmaasync.emulate.extents import Extent, GlobalNames
from tmaasync.emulate.occupancy import residency
from tmaasync.emulate.peer_causes import cause_between_devices
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

# In the order of the runtime's Operation.
_OPERATIONS = (
    "ordinary read",
    "ordinary write",
    "atomic operation",
    "stmatrix",
    "TMA load",
    "TMA store",
    "TMA reduction",
    "wgmma",
    "mbarrier.init",
    "mbarrier operation",
    "use of registers",
    "TMA's read of a tensor map",
    "cp.async",
    "TMA copy between CTAs",
    "TMA reduction between CTAs",
    "ldmatrix",
    "atomic operation of one block",
)
_ATOMIC, _BLOCK_ATOMIC = "atomic operation", "atomic operation of one block"
_LOAD, _INIT, _REGISTERS = "TMA load", "mbarrier.init", "use of registers"
_MAP_READ = "TMA's read of a tensor map"
_THREAD_COPY = "cp.async"
_STORES = ("TMA store", "TMA reduction")
_PUSHES = ("TMA copy between CTAs", "TMA reduction between CTAs")
# An address in shared memory or in the code, as runtime/words.hpp writes it into a reason.
_ADDRESS = re.compile(r"\{(barrier|offset|bytes|line|stage|place) (\d+)\}")

COPY_ENGINE = Path(__file__).with_name("copy_engine.cu")
"""What emulated streams do for `Signals`."""


def _variables(program: EmulatedProgram) -> Mapping[str, Extent]:
    """Return where the kernel's variables in constant and global memory lie."""
    found = variables_of(program.path) if program.path.is_file() else {}
    return {
        name: Extent(program.address_of(one.address), 0, one.size_bytes)
        for name, one in found.items()
    }


@dataclass(frozen=True, slots=True)
class Facts:
    """What the host knows of a launch that failed."""

    config: LaunchConfig
    budget_seconds: float
    size: LaunchEstimate
    arrays: Sequence[Iterable[Extent]]


def error_of(program: EmulatedProgram, facts: Facts, report: str) -> TMAError:
    """Return the exception for what the runtime reports of a launch."""
    return error_of_several([(program, facts, None)], report)


def error_of_several(
    launches: Sequence[tuple[EmulatedProgram, Facts, int | None]], report: str
) -> TMAError:
    """Return the exception for what the runtime reports of launches that ran together.

    Args:
        launches: The program, the facts and the emulated device of each.
        report: The runtime's JSON.
    """
    record = json.loads(report)
    if record["kind"] == "memory":
        return LaunchError(
            "grid: this machine has no memory or no mappings left for the launch: "
            f"{launches[0][1].size}. Launch smaller blocks or clusters, or run fewer at once with "
            "emulate.scheduled(workers=1)."
        )
    several = [
        _Words(program, facts.config.shared_bytes, facts.arrays, device)
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
    """Put the innermost caller with a line where what has none was interrupted."""
    address = record.get("address", 0)
    if not record.get("callers") or words.line(address):
        return
    caller = next(filter(words.line, record["callers"]), address)
    for place in (record, *record["waits"]):
        if place["address"] == address and place["launch"] == record["launch"]:
            place["address"] = caller


# --- names ------------------------------------------------------------------------------------


def shared_names(program: EmulatedProgram, shared_bytes: int) -> NameOf:
    """Return the source's names of offsets in the kernel's shared memory."""
    words = _Words(program, shared_bytes)
    return functools.cache(lambda offset: words.name(offset) or offset_name(offset))


_STATIC_ALIGNMENT = 1024  # as in runtime/machine.hpp
_OWN_VARIABLES = ("first_variable", "dynamic_memory")  # of cuda.hpp


class _Words:
    """The names and lines of one kernel's source."""

    def __init__(
        self,
        program: EmulatedProgram,
        shared_bytes: int,
        arrays: Sequence[Iterable[Extent]] | None = None,
        device: int | None = None,
    ) -> None:
        self.program = program
        self.device = device  # of an emulated world
        self._info = debug_info(program.path, program.source.text)
        self._arrays = arrays
        self._static = -(-shared_bytes // _STATIC_ALIGNMENT) * _STATIC_ALIGNMENT

    def line(self, address: int) -> str | None:
        """Return the line in the kernel's source, as in ``gemm.cu:120``."""
        if not address:
            return None
        return self._line_at(address) or self._line_of_calls(address)

    def _line_at(self, address: int) -> str | None:
        frame = source_frame(self._info.frames(address), self.program.source.name)
        return None if frame is None else f"{frame.file}:{frame.line}"

    def _line_of_calls(self, address: int) -> str | None:
        """Return the one line that calls the function of a header that the address is in."""
        seen, functions, lines = set[int](), {address}, set[str]()
        while functions:
            calls = {call for inside in functions for call in self._info.callers(inside)} - seen
            seen |= calls
            found = {call: self._line_at(call) for call in calls}
            lines |= set(filter(None, found.values()))
            functions = {call for call, line in found.items() if line is None}
        return lines.pop() if len(lines) == 1 else None

    def name(self, offset: int) -> str | None:
        """Return the source's name of this offset of shared memory."""
        if offset < self._static:
            return self._info.shared_name(offset)
        # Static variables keep their order, with the dynamic array among them taken out.
        static = offset - self._static
        offsets = (static, static + MAX_SHARED_BYTES)
        names = filter(None, map(self._info.static_shared_name, offsets))
        own = next((name for name in names if not name.startswith(_OWN_VARIABLES)), None)
        return own or self._info.shared_name(offset)  # beyond the memory that the launch asks for

    @functools.cached_property
    def globals(self) -> GlobalNames:
        """The names of addresses in global memory."""
        names = self._info.parameter_names(function_name(self.program.name))
        return GlobalNames(self._arrays, names, _variables(self.program))

    def with_names(self, reason: str) -> str:
        """Put the source's names of barriers, buffers and arrays where the reason has addresses."""
        named = _ADDRESS.sub(lambda found: self._described(found[1], int(found[2])), reason)
        return self.globals.in_text(named)

    def sibling(self, name: str | None, member: str) -> str | None:
        """Return another member of the stage that has this name; None if there is none."""
        part = ring_part(name)
        other = None if part is None else part.sibling(member)
        return other if other is not None and self._info.has_shared_member(other) else None

    def _unnamed_barrier(self, offset: int) -> str:
        """Name a place without a name by the mbarriers before it: "empty[3], of 3"."""
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
_MAX_BARRIERS_BEYOND = 16  # an mbarrier that far after the last one is no index of it


# --- deadlocks --------------------------------------------------------------------------------


def _waiting(words: _Words, arrivals: Arrivals | None, record: dict[str, Any]) -> WaitingThreads:
    barrier = record.get("barrier", {})
    home = barrier.get("block")
    offset = barrier.get("offset")
    name = None if offset is None else words.name(offset)
    part = ring_part(name)
    buffers = (words.name(start) for start in barrier.get("landings", ()))
    of_stream = "signal" in record and words.program.source.text == COPY_ENGINE.read_text()
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
    """Name what a thread reads again and again, if it has a name."""
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
    else:
        cause = _cause(words, _Pair(first, second, record["memory"], known))
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


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two accesses that race, and what the detector knows of them."""

    first: EmulatedAccess
    second: EmulatedAccess
    memory: str
    known: frozenset[str]

    def holds(self, fact: str) -> bool:
        """Return whether a fact of the detector, or one of these, is true."""
        first, second = self.first, self.second
        facts = {
            "is_global": self.memory == "global",
            "first_writes": first.is_write,
            "both_write": first.is_write and second.is_write,
            "first_reads_memory": first.operation in ("ordinary read", "ldmatrix"),
            "one_thread": (first.block, first.thread) == (second.block, second.thread),
            "one_block": first.block == second.block,
            "one_line": first.source is not None and first.source == second.source,
        }
        return fact in self.known or facts.get(fact, False)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The likeliest missing step between two accesses; None stands for any operation.

    All of ``needs`` have to hold, and none of ``lacks``. In a cause ``{full}`` stands for the
    mbarrier that a load completes on, and ``{empty}`` for the one on which its stage is released.
    """

    before: str | None
    after: str | None
    cause: str
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def fits(self, pair: _Pair) -> bool:
        return (
            self.before in (None, pair.first.operation)
            and self.after in (None, pair.second.operation)
            and all(map(pair.holds, self.needs))
            and not any(map(pair.holds, self.lacks))
        )


_MEET = "meet: __syncthreads(), a named barrier, or cluster_sync() where they belong to two CTAs"
_FLAG = (
    "calls __threadfence() and then sets a flag by an atomic operation; the other polls the flag "
    "by an atomic operation and then calls __threadfence()"
)

# The first that fits.
_RULES = (
    *(
        _Rule(
            before,
            after,
            "functions whose names end in _block are atomic for the threads of one block, and "
            "another block uses the same bytes. Call the function without _block",
        )
        for before, after in (
            (_BLOCK_ATOMIC, _BLOCK_ATOMIC),
            (_BLOCK_ATOMIC, _ATOMIC),
            (_ATOMIC, _BLOCK_ATOMIC),
        )
    ),
    _Rule(
        _INIT,
        None,
        "TMA may not see the barrier yet: the thread that calls init() must call "
        "fence_barrier_init() after it",
        ("lacks_fence",),
    ),
    _Rule(
        _INIT,
        None,
        "no barrier lies between init() and the use. Call __syncthreads() after it, or "
        "cluster_sync() where another CTA uses the barrier",
    ),
    _Rule(
        None,
        _REGISTERS,
        "registers are used before wgmma has finished. Commit the group and wait for it with "
        "wgmma_wait_group, or give the next values other registers",
    ),
    _Rule(
        _REGISTERS,
        None,
        "wgmma uses registers that the thread may still be writing. Call wgmma_fence() before it",
    ),
    _Rule(
        None,
        _MAP_READ,
        "TMA may read the map as it was before the edit. The editing thread calls "
        "tensormap_fence_release() after it (a warp tensormap_cp_fence_release()), and the thread "
        "that copies then calls tensormap_fence_acquire(); edit_in_gmem and edit_in_shared_mem do "
        "both",
        ("lacks_fence",),
    ),
    _Rule(
        _MAP_READ,
        None,
        "a copy that uses the map may still be in flight. Wait for the barrier of its load, or "
        "with wait_group_read for its store, before the map is edited",
    ),
    _Rule(
        None,
        None,
        "the write was not made visible to TMA. Every writing thread calls "
        "ptx::fence_proxy_async_global() after it and before the barrier or the flag",
        ("lacks_fence", "is_global"),
    ),
    _Rule(
        None,
        None,
        "the write was not made visible to TMA and wgmma. Every writing thread calls "
        "fence_async_view_proxy() after it and before the barrier",
        ("lacks_fence",),
    ),
    _Rule(
        _LOAD,
        _LOAD,
        "two loads write the same bytes. Give each its own stage or share, and wait for the first "
        "before the second",
    ),
    _Rule(
        _THREAD_COPY,
        _THREAD_COPY,
        "two copies write the same bytes. Give each its own, or wait for one before the next",
    ),
    _Rule(
        _THREAD_COPY,
        None,
        "the copy may not have landed. The thread that issued it waits with cp_async_wait<N>() and "
        "then meets the others, or all arrive on an mbarrier with mbarrier_cp_async_arrive() and "
        "wait on it",
    ),
    _Rule(_LOAD, None, "the data may not have landed. Wait on {full} before the other access"),
    *(
        rule
        for store in _STORES
        for rule in (
            _Rule(
                store,
                None,
                "one store writes the same bytes twice: its tile overlaps itself in global memory. "
                "Give the array strides that are at least as long as its sides",
                ("is_one_copy", "first_writes"),
            ),
            *(
                _Rule(
                    store,
                    other,
                    "two stores write the same bytes. Let one thread of one block store each tile: "
                    "check the coordinates, and that tiles end where the next one begins",
                    ("first_writes",),
                    ("one_thread",),
                )
                for other in _STORES
            ),
            _Rule(
                store,
                None,
                "the store has completed, and nothing orders the other access after it. After "
                f"wait_group<0>() the storing thread {_FLAG}",
                ("first_writes", "is_stored"),
                ("one_block",),
            ),
            _Rule(
                store,
                None,
                "the store has completed, and nothing orders the other access after it. After "
                f"wait_group<0>() the two {_MEET}",
                ("first_writes", "is_stored"),
            ),
            _Rule(
                store,
                None,
                "the store may not have reached global memory. Wait with wait_group<0>() before "
                "the other access; wait_group_read is not enough. A thread of another block needs "
                "a flag too: the storing thread then calls __threadfence() and sets it",
                ("first_writes",),
                ("one_block",),
            ),
            _Rule(
                store,
                None,
                "the store may not have reached global memory. Wait with wait_group<0>() before "
                "the other access; wait_group_read is not enough",
                ("first_writes",),
            ),
            _Rule(
                store,
                None,
                "the store is issued before the write, which is the first to these bytes. Every "
                "writing thread calls fence_async_view_proxy() after it, and then they and the "
                f"storing thread {_MEET}",
                ("was_unwritten",),
            ),
            _Rule(
                store,
                None,
                "the store may still be reading its buffer. Wait with wait_group_read before the "
                "buffer is written again",
            ),
        )
    ),
    *(
        _Rule(
            push,
            None,
            "the bytes may not have landed. Wait on the barrier that the copy credits",
            ("first_writes",),
        )
        for push in _PUSHES
    ),
    _Rule(
        _PUSHES[0],
        None,
        "the copy may still be reading its source. Let the receiver signal, after its wait on the "
        "barrier, before the source is written again",
    ),
    *(
        _Rule(
            None,
            push,
            "the memory is written before its readers are done. Let them arrive on a barrier of "
            "the pushing CTA, and let it wait there",
        )
        for push in _PUSHES
    ),
    _Rule(
        "wgmma",
        None,
        "wgmma is issued before the write, which is the first to these bytes. Every writing thread "
        "calls fence_async_view_proxy() after it, and then they and the threads that multiply "
        f"{_MEET}",
        ("was_unwritten",),
    ),
    _Rule(
        "wgmma",
        None,
        "wgmma may still be reading the stage. Wait for its group before the stage is released",
    ),
    _Rule(
        None,
        _LOAD,
        "nothing orders the write before the load, which another block issues. After the write, "
        f"each writing thread {_FLAG} and ptx::fence_proxy_async_global(), and then loads",
        ("is_global",),
        ("one_block",),
    ),
    _Rule(
        None,
        _LOAD,
        "nothing orders the write before the load. Every writing thread calls "
        "ptx::fence_proxy_async_global() after it, and then they and the loading thread "
        f"{_MEET}",
        ("is_global",),
    ),
    _Rule(
        None,
        _LOAD,
        "the reader arrives on {empty} with a relaxed arrival, which orders no ordinary read "
        "before it. Arrive with arrive() or arrive_cluster()",
        ("has_relaxed_arrival", "first_reads_memory"),
    ),
    _Rule(
        None,
        _LOAD,
        "the buffer is loaded before its readers are done. Let them arrive on {empty}, and let the "
        "producer wait on it",
    ),
    _Rule(
        None,
        _THREAD_COPY,
        f"nothing orders the write before the copy. After the write, each writing thread {_FLAG}, "
        "and then copies",
        ("is_global",),
        ("one_block",),
    ),
    _Rule(
        None,
        _THREAD_COPY,
        "the buffer is copied into before its readers are done. Let them meet the copying threads "
        "first",
        (),
        ("is_global",),
    ),
    _Rule(
        None,
        None,
        "two threads write the same element. Check the index, so that each writes its own, or add "
        "with atomicAdd()",
        ("is_global", "both_write", "one_line"),
    ),
    _Rule(
        None,
        None,
        "no flag orders the two, and __syncthreads() does not reach another block. The thread that "
        f"comes first {_FLAG}",
        ("is_global",),
        ("one_block",),
    ),
    _Rule(
        None,
        None,
        "no barrier orders the two. Put __syncthreads(), a named barrier or an mbarrier between "
        "them",
    ),
)


def _cause(words: _Words, pair: _Pair) -> str:
    rule = next(rule for rule in _RULES if rule.fits(pair))
    cause = rule.cause.format(
        full=pair.first.barrier_name or "the barrier that the load credits",
        empty=words.sibling(pair.second.barrier_name, "empty") or "an empty barrier",
    )
    return in_words_of(words.program.source, cause)
