"""From the cycle counts of every SM to nanoseconds of one clock.

Each SM counts its own cycles, exactly; the clock of the whole chip ticks in steps of
32 ns to 1 us. So warps note cycles, and now and then both clocks: a line through all those pairs
gives the length of a cycle, and for each SM when it began to count. Times on one
SM are exact to a cycle, between two SMs to a part of the chip clock's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync.trace.chip.layout import RecordKind

_Array = np.ndarray[Any, Any]
_ENOUGH_STEPS = 100


@dataclass(frozen=True, slots=True)
class ChipClock:
    """A cycle in nanoseconds, and for each SM one cycle count and its time in nanoseconds."""

    cycle_ns: float
    starts: dict[int, tuple[int, float]]
    origin_ns: int  # on the chip's clock, from which times count

    @classmethod
    def of(cls, warps: _Array, usual_cycle_ns: float) -> ChipClock:
        """Return the clock that fits what the warps (`WARP_DTYPE`) read.

        Args:
            warps: The warps that noted anything.
            usual_cycle_ns: Nanoseconds of a cycle where the launch is too short to measure it.
        """
        clocks = warps["clocks"]
        was_read = clocks["global_ns"] != 0
        processors = np.broadcast_to(warps["processor"][:, None], was_read.shape)[was_read]
        known, which = np.unique(processors, return_inverse=True)
        # Differences are small enough for float64, whatever the clocks show.
        times = clocks["global_ns"][was_read].astype(np.int64)
        origin_ns = int(times.min())
        times = (times - origin_ns).astype(np.float64)
        counts = clocks["cycles"][was_read].astype(np.int64)
        origins = np.full(len(known), np.iinfo(np.int64).max)
        np.minimum.at(origins, which, counts)
        cycles = (counts - origins[which]).astype(np.float64)
        cycle_ns = _slope(cycles, times, which, usual_cycle_ns)
        starts = np.bincount(which, times - cycle_ns * cycles) / np.bincount(which)
        pairs = zip(origins.tolist(), starts.tolist(), strict=True)
        return cls(cycle_ns, dict(zip(known.tolist(), pairs, strict=True)), origin_ns)

    def times_ns(self, cycles: _Array, processors: _Array) -> _Array:
        """Return the times at which SMs counted these cycles, one SM per cycle count."""
        known, which = np.unique(processors, return_inverse=True)
        found = [self.starts[int(processor)] for processor in known]
        origins = np.array([origin for origin, _ in found], np.int64)
        starts = np.array([start for _, start in found], np.float64)
        times: _Array = (cycles - origins[which]) * self.cycle_ns + starts[which]
        return times


def _slope(cycles: _Array, times: _Array, which: _Array, usual: float) -> float:
    """Nanoseconds per cycle, by least squares with a start of its own for each SM."""
    steps = np.diff(np.unique(times))
    if not len(steps) or np.ptp(times) < _ENOUGH_STEPS * steps.min():
        return usual
    counts = np.bincount(which)
    x = cycles - (np.bincount(which, cycles) / counts)[which]
    y = times - (np.bincount(which, times) / counts)[which]
    spread = float(x @ x)
    found = float(x @ y) / spread if spread else usual
    return found if usual / 2 < found < usual * 2 else usual


def cycles_of(records: _Array, warps: _Array) -> _Array:
    """Return the 64-bit cycle of every record, from the low 32 bits that each one has.

    Args:
        records: `RECORD_DTYPE`, one row per warp.
        warps: `WARP_DTYPE`, which read all 64 before the first record.
    """
    opened = warps["clocks"]["cycles"][:, 0].astype(np.int64)
    # Lanes that have diverged may note a little out of order, so steps have a sign.
    before = opened.astype(np.uint32)[:, None]
    steps = np.diff(records["time"], axis=1, prepend=before).astype(np.int32)
    cycles = opened[:, None] + np.cumsum(steps, axis=1, dtype=np.int64)
    # A wait may be longer than 32 bits count: some note 16 bits more, which later notes rely on.
    is_exact = np.isin(records["what"] & 31, _WITH_MORE_BITS)
    exact = (records["what"] >> 16).astype(np.int64) << 32 | records["time"]
    beyond = (exact - cycles + (1 << 47)) % (1 << 48) - (1 << 47)
    last = np.maximum.accumulate(np.where(is_exact, np.arange(records.shape[1]), -1), axis=1)
    missed = np.take_along_axis(beyond, np.maximum(last, 0), axis=1)
    found: _Array = cycles + np.where(last < 0, 0, missed)
    return found


_WITH_MORE_BITS = (RecordKind.WAIT, RecordKind.SIGNAL_WAIT, RecordKind.SIGNAL_GIVEN_UP)
