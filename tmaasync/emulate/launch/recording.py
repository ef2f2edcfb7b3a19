"""The trace of a launch: the runtime's events, for the collector."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tmaasync._collectors import TraceCollector
from tmaasync._driver import LaunchConfig
from tmaasync.emulate import abi
from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.emulate.report.words import shared_names
from tmaasync.trace.events import EVENT_DTYPE, NOTHING, SIGNAL_KINDS
from tmaasync.trace.roles import ROLE_DTYPE, warp_roles
from tmaasync.trace.trace import Trace


class TracedTo(NamedTuple):
    """The end of a world's traces so far: the first free time and post number."""

    time: int
    posts: int


NOT_TRACED = TracedTo(0, 0)


@dataclass(frozen=True, slots=True)
class Recording:
    """The events of one launch, which go to a collector when it ends."""

    collector: TraceCollector
    program: EmulatedProgram
    config: LaunchConfig
    device: int | None
    rank: int | None
    _log: abi.EventLog = field(default_factory=abi.EventLog)

    def start(self, numbers: abi.LaunchNumbers) -> None:
        """Have the runtime record the launch with these parameters."""
        numbers.log = ctypes.pointer(self._log)

    def hand_over(self, begin: TracedTo = NOT_TRACED) -> TracedTo:
        """Give the events to the collector, even if the launch failed."""
        log, config = self._log, self.config
        names = shared_names(self.program, config.shared_bytes)
        raw = taken(log.events, log.count * EVENT_DTYPE.itemsize)
        events = np.frombuffer(raw, EVENT_DTYPE).copy()
        posted = np.isin(events["kind"], SIGNAL_KINDS) & (events["sequence"] != NOTHING)
        events["time"] += np.uint64(begin.time)
        events["sequence"][posted] += np.uint32(begin.posts)
        roles = taken(log.roles, log.role_count * ROLE_DTYPE.itemsize)
        trace = Trace(
            kernel_name=self.program.name,
            grid=config.grid,
            block=config.block,
            cluster=config.cluster or (1, 1, 1),
            events=events,
            name_of=names,
            roles=warp_roles(roles),
            device=self.device,
            rank=self.rank,
        )
        self.collector.take(trace)
        posts = int(events["sequence"][posted].max(initial=begin.posts)) + 1
        return TracedTo(trace.end + 1, posts)


_LIBC = ctypes.CDLL(None)
_LIBC.free.argtypes = (ctypes.c_void_p,)
_LIBC.free.restype = None


def taken(address: int | None, size: int) -> bytes:
    """Return bytes of the runtime, and free them."""
    if not address:
        return b""
    try:
        return ctypes.string_at(address, size)
    finally:
        _LIBC.free(address)
