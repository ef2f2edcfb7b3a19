"""Device memory as warps of the chip leave it, written by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tmaasync.trace import Trace
from tmaasync.trace.chip import (
    RECORD_DTYPE,
    WARP_DTYPE,
    ChipLaunch,
    Layout,
    RawTrace,
    RecordKind,
    decode,
)

__all__ = ["BASE", "Chip"]

BASE = 1024
"""Where dynamic shared memory begins."""

_WAITS = ("wait", "store_wait_read", "store_wait", "mma_wait", "named_wait", "cluster_wait")


@dataclass
class Chip:
    """A launch whose SMs count cycles of ``cycle_ns`` from ``starts`` on.

    Times are given in nanoseconds of the chip's clock, which ticks in steps of ``step_ns``. Block i
    runs on processor i.
    """

    blocks: int = 1
    warps: int = 3
    room: int = 64
    cluster: int = 1
    cycle_ns: float = 0.5
    step_ns: int = 1
    starts: tuple[int, ...] = (0,)
    shared_bytes: int = 8192
    max_bytes: int = 1 << 28
    device: int | None = None
    rank: int | None = None
    timer_ns: int = 1_700_000_000_000_000_000
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        grid, block = (self.blocks, 1, 1), (32 * self.warps, 1, 1)
        self.layout = Layout.of(grid, block, self.room, self.max_bytes)
        self._warps = np.zeros(self.layout.warps, WARP_DTYPE)
        self._records = np.zeros(self.layout.records_shape, RECORD_DTYPE)
        self._used = np.zeros(self.layout.warps, int)

    def __call__(
        self,
        end_ns: float,
        kind: str,
        thread: int,
        *,
        began_ns: float | None = None,
        block: int = 0,
        barrier: int = 0,
        shared: int = 0,
        home: int | None = None,
        parity: int = 0,
        ready: bool = False,
        number: int = 0,
        amount: int = 0,
    ) -> None:
        """One record, by the rules of ``struct TraceRecord``."""
        warp = block * self.warps + thread // 32
        index = int(self._used[warp])
        self._used[warp] += 1
        if index == 0:
            self._read_clocks(warp, block, 0, end_ns)
        if kind in ("wait", "signal_wait") and index % 32 < 4:
            self._read_clocks(warp, block, 1 + index // 32 % 15, end_ns)
        rank = block % self.cluster if home is None else home
        what = RecordKind[kind.upper()] | thread % 32 << 5 | parity << 10 | ready << 11
        is_named = kind.startswith("named")
        where = barrier if is_named else (barrier + BASE) // 8 | (shared + BASE) // 16 << 16
        if kind.startswith("signal"):
            where = barrier
        if kind in ("wait", "signal_wait", "signal_given_up"):
            number = self._cycles(end_ns, block) >> 32 & 0xFFFF
        more = self._cycles(end_ns if began_ns is None else began_ns, block)
        if index >= self.room:
            more, kind = index, ""
        self._records[warp, min(index, self.room)] = (
            self._cycles(end_ns, block) % 2**32,
            what | rank << 12 | number << 16,
            where,
            amount if kind and kind not in _WAITS else more % 2**32,
        )

    def set_role(self, warp: int, role: bytes, number: int = 0xFFFFFFFF) -> None:
        """What ``trace_role`` of the kernel writes; ``warp`` counts over all blocks."""
        self._warps[warp]["role"], self._warps[warp]["role_number"] = role, number

    def _cycles(self, time_ns: float, block: int) -> int:
        return self.starts[block % len(self.starts)] + round(time_ns / self.cycle_ns)

    def _read_clocks(self, warp: int, block: int, slot: int, time_ns: float) -> None:
        clocks = self._warps[warp]["clocks"]
        ticks = int(time_ns) // self.step_ns * self.step_ns
        clocks[slot] = (self.timer_ns + ticks, self._cycles(time_ns, block))
        self._warps[warp]["processor"] = block
        self._warps[warp]["dynamic_shared"] = BASE

    def trace(self, usual_cycle_ns: float = 0.5) -> Trace:
        """What is read out of it."""
        (trace,) = decode([self.raw(usual_cycle_ns)])
        return trace

    def raw(self, usual_cycle_ns: float = 0.5) -> RawTrace:
        """What the launch left."""
        launch = ChipLaunch(
            kernel_name="ring",
            grid=(self.blocks, 1, 1),
            block=(32 * self.warps, 1, 1),
            cluster=(self.cluster, 1, 1),
            shared_bytes=self.shared_bytes,
            device=self.device,
            rank=self.rank,
        )
        raw = self._warps.tobytes() + self._records.tobytes()
        return RawTrace(raw, self.layout, launch, usual_cycle_ns)
