"""From the runtime's report of a failed launch to an exception with names and lines."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from tmaasync._driver import LaunchConfig
from tmaasync._hardware import MAX_SHARED_BYTES
from tmaasync.emulate.arrivals import Arrivals
from tmaasync.emulate.build import EmulatedProgram
from tmaasync.emulate.debug_info import debug_info, source_frame
from tmaasync.emulate.estimate import LaunchEstimate
from tmaasync.errors import (
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

__all__ = ["error_of", "shared_names"]

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
)
_LOAD, _INIT, _REGISTERS = "TMA load", "mbarrier.init", "use of registers"
_MAP_READ = "TMA's read of a tensor map"
_THREAD_COPY = "cp.async"
_STORES = ("TMA store", "TMA reduction")
_PUSHES = ("TMA copy between CTAs", "TMA reduction between CTAs")
# An address in shared memory or in the code, as runtime/words.hpp writes it into a reason.
_ADDRESS = re.compile(r"\{(barrier|offset|bytes|line|stage) (\d+)\}")


def error_of(
    program: EmulatedProgram,
    config: LaunchConfig,
    budget_seconds: float,
    size: LaunchEstimate,
    report: str,
) -> TMAError:
    """Return the exception for what the runtime reports of a launch."""
    record = json.loads(report)
    if record["kind"] == "memory":
        return LaunchError(
            f"grid: this machine has no memory or no mappings left for the launch: {size}. Launch "
            "smaller blocks or clusters, or run fewer at once with emulate.scheduled(workers=1)."
        )
    words = _Words(program, config.shared_bytes)
    _name_caller(words, record)
    if record["kind"] == "race":
        return _race(words, record)
    if record["kind"] == "fault":
        return EmulatedFault(
            program.name,
            words.with_names(record["reason"]),
            tuple(record["block"]),
            record["thread"],
            words.line(record["address"]),
            record["role"] or None,
        )
    arrivals = Arrivals(record, words.name)
    waits = tuple(_waiting(words, arrivals, wait) for wait in record["waits"])
    if record["kind"] == "timeout":
        looping = (tuple(record["block"]), record["thread"]) if "thread" in record else None
        budget = None if record.get("is_endless") else budget_seconds
        return EmulatedTimeout(program.name, budget, looping, waits)
    return EmulatedDeadlock(program.name, waits)


def _name_caller(words: _Words, record: dict[str, Any]) -> None:
    """Put the innermost caller with a line where what has none was interrupted."""
    address = record.get("address")
    if not record.get("callers") or words.line(address):
        return
    caller = next(filter(words.line, record["callers"]), address)
    for place in (record, *record["waits"]):
        if place["address"] == address:
            place["address"] = caller


# --- names ------------------------------------------------------------------------------------


def shared_names(program: EmulatedProgram, shared_bytes: int) -> NameOf:
    """Return the source's names of offsets in the kernel's shared memory."""
    words = _Words(program, shared_bytes)
    return functools.cache(lambda offset: words.name(offset) or offset_name(offset))


_STATIC_ALIGNMENT = 1024  # as in runtime/machine.hpp


class _Words:
    """The names and lines of one kernel's source."""

    def __init__(self, program: EmulatedProgram, shared_bytes: int) -> None:
        self.program = program
        self._info = debug_info(program.path)
        self._static = -(-shared_bytes // _STATIC_ALIGNMENT) * _STATIC_ALIGNMENT

    def line(self, address: int) -> str | None:
        """Return the line in the kernel's source, as in ``gemm.cu:120``."""
        if not address:
            return None
        frame = source_frame(self._info.frames(address), self.program.source.name)
        return None if frame is None else f"{frame.file}:{frame.line}"

    def name(self, offset: int) -> str | None:
        """Return the source's name of this offset of shared memory."""
        if offset < self._static:
            return self._info.shared_name(offset)
        # Static variables keep their order, with the dynamic array among them taken out.
        static = offset - self._static
        offsets = (static, static + MAX_SHARED_BYTES)
        return next(filter(None, map(self._info.static_shared_name, offsets)), None)

    def with_names(self, reason: str) -> str:
        """Put the source's names of barriers and buffers where the reason has addresses."""
        return _ADDRESS.sub(lambda found: self._described(found[1], int(found[2])), reason)

    def sibling(self, name: str | None, member: str) -> str | None:
        """Return another member of the stage that has this name; None if there is none."""
        part = ring_part(name)
        other = None if part is None else part.sibling(member)
        return other if other is not None and self._info.has_shared_member(other) else None

    def _described(self, kind: str, offset: int) -> str:
        if kind == "line":
            line = self.line(offset)
            return "" if line is None else f" at {line}"
        name = self.name(offset)
        if kind == "barrier":
            return name or f"the mbarrier at shared offset {offset}"
        if kind == "stage":
            full = self.sibling(name, "full")
            return "" if full is None else f": {full} ends the loads into the stage"
        address = f"shared {kind} {offset}"
        return address if name is None else f"{address} ({name})"


# --- deadlocks --------------------------------------------------------------------------------


def _waiting(words: _Words, arrivals: Arrivals, record: dict[str, Any]) -> WaitingThreads:
    barrier = record.get("barrier", {})
    home = barrier.get("block")
    offset = barrier.get("offset")
    name = None if offset is None else words.name(offset)
    part = ring_part(name)
    buffers = (words.name(start) for start in barrier.get("landings", ()))
    return WaitingThreads(
        block=tuple(record["block"]),
        threads=tuple(record["threads"]),
        instruction=record["instruction"],
        source=words.line(record["address"]),
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
        late=None if offset is None else arrivals.late(record),
    )


# --- races ------------------------------------------------------------------------------------


def _race(words: _Words, record: dict[str, Any]) -> EmulatedRace:
    first, second = (_access(words, record[which]) for which in ("first", "second"))
    is_shared = record["memory"] == "shared"
    shared = record["first"]["bytes"] & record["second"]["bytes"]
    start = record["start"] + ((shared & -shared).bit_length() - 1 if shared else 0)
    return EmulatedRace(
        words.program.name,
        memory=record["memory"],
        start=start,
        name=words.name(start) if is_shared else None,
        first=first,
        second=second,
        cause=_cause(
            words, first, second, lacks_fence=record["lacks_proxy_fence"], is_shared=is_shared
        ),
    )


def _access(words: _Words, record: dict[str, Any]) -> EmulatedAccess:
    return EmulatedAccess(
        block=tuple(record["block"]),
        thread=record["thread"],
        operation=_OPERATIONS[record["operation"]],
        is_write=record["writes"],
        source=words.line(record["address"]),
        role=record.get("role") or None,
        barrier_name=words.name(record["barrier"]) if "barrier" in record else None,
    )


@dataclass(frozen=True, slots=True)
class _Rule:
    """The likeliest missing step between two accesses; None stands for any operation.

    In a cause ``{fence}`` stands for the proxy fence of that memory, ``{full}`` for the mbarrier
    that a load completes on, and ``{empty}`` for the one on which its stage is released.
    """

    before: str | None
    after: str | None
    cause: str
    fence: bool | None = None  # whether nothing but a fence between the proxies is missing
    first_writes: bool | None = None

    def fits(self, first: EmulatedAccess, second: EmulatedAccess, *, fence: bool) -> bool:
        return (
            self.before in (None, first.operation)
            and self.after in (None, second.operation)
            and self.fence in (None, fence)
            and self.first_writes in (None, first.is_write)
        )


# The first that fits.
_RULES = (
    _Rule(
        _INIT,
        None,
        "TMA may not see the barrier yet: the thread that calls init() must call "
        "fence_barrier_init() after it",
        fence=True,
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
        fence=True,
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
        "the write was not made visible to TMA and wgmma. Every writing thread calls {fence}() "
        "after it and before the barrier",
        fence=True,
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
        _Rule(
            store,
            None,
            "the store may not have reached global memory. Wait with wait_group<0>() before the "
            "other access; wait_group_read is not enough",
            first_writes=True,
        )
        for store in _STORES
    ),
    *(
        _Rule(
            store,
            None,
            "the store may still be reading its buffer. Wait with wait_group_read before the "
            "buffer is written again",
        )
        for store in _STORES
    ),
    *(
        _Rule(
            push,
            None,
            "the bytes may not have landed. Wait on the barrier that the copy credits",
            first_writes=True,
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
        "wgmma may still be reading the stage. Wait for its group before the stage is released",
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
        "the buffer is copied into before its readers are done. Let them meet the copying threads "
        "first",
    ),
    _Rule(
        None,
        None,
        "no barrier orders the two. Put __syncthreads(), a named barrier or an mbarrier between "
        "them",
    ),
)


def _cause(
    words: _Words,
    first: EmulatedAccess,
    second: EmulatedAccess,
    *,
    lacks_fence: bool,
    is_shared: bool,
) -> str:
    rule = next(rule for rule in _RULES if rule.fits(first, second, fence=lacks_fence))
    return rule.cause.format(
        fence="fence_async_view_proxy" if is_shared else "ptx::fence_proxy_async_global",
        full=first.barrier_name or "the barrier that the load credits",
        empty=words.sibling(second.barrier_name, "empty") or "an empty barrier",
    )
