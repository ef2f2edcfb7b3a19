"""Device time of several candidates in interleaved rounds, and the GPU's clock and power meanwhile.

In every round each candidate runs one slice of calls, so that clock drift and neighbours hit all
candidates alike. Compare candidates by the ratio within a round.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import statistics
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

_WARM_UP_CALLS = 3
_LEAST_CALLS = 3
_NVML = "libnvidia-ml.so.1"  # comes with the driver
_SM_CLOCK = 1  # NVML_CLOCK_SM

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Timings(Generic[_Name]):
    """Measured times of the candidates.

    Attributes:
        microseconds: Per call, round by round, by candidate.
        calls: Calls in one slice, by candidate.
    """

    microseconds: Mapping[_Name, list[float]]
    calls: Mapping[_Name, int]

    def medians(self) -> dict[_Name, float]:
        """Return the median microseconds per call."""
        return {name: statistics.median(times) for name, times in self.microseconds.items()}

    def speeds(self, name: _Name, over: _Name) -> list[float]:
        """Return the speed of a candidate over another one's, round by round."""
        pairs = zip(self.microseconds[over], self.microseconds[name], strict=True)
        return [theirs / own for theirs, own in pairs]

    def speed(self, name: _Name, over: _Name) -> float:
        """Return the median over the rounds of the ratio within a round."""
        return statistics.median(self.speeds(name, over))


def device_microseconds(
    run: Callable[[], object], calls: int, *, is_sustained: bool = True
) -> float:
    """Return the device time per call of back-to-back calls on CuPy's current stream.

    Sustained timing runs half as many calls first, untimed. The clock is then the one that this
    work gets under the power limit, not the one that the previous work left.
    """
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    for _ in range(calls // 2 if is_sustained else 0):
        run()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1000 / calls


_Clock = Callable[[Callable[[], object], int], float]
"""Returns microseconds per call, given a function and a number of calls."""


def calls_per_slice(
    candidates: Mapping[_Name, Callable[[], object]],
    seconds: float,
    microseconds: _Clock = device_microseconds,
) -> dict[_Name, int]:
    """Warm up all candidates and return how many calls of each take ``seconds``; at least three."""
    found = {}
    for name, run in candidates.items():
        microseconds(run, _WARM_UP_CALLS)
        once = max(microseconds(run, _LEAST_CALLS), 1.0)
        found[name] = max(_LEAST_CALLS, int(seconds * 1e6 / once))
    return found


def time_interleaved(
    candidates: Mapping[_Name, Callable[[], object]],
    calls: Mapping[_Name, int],
    *,
    rounds: int,
    microseconds: _Clock = device_microseconds,
    on_round: Callable[[], object] = lambda: None,
) -> Timings[_Name]:
    """Time candidates in rounds in which each runs a slice of its `calls_per_slice`.

    A slice leaves the device hotter or cooler for the next one. So two candidates swap their order
    after every round, and follow each other, and themselves, equally often; more than two have a
    random order in every round, the same ones in equal calls. ``on_round`` is called after every
    round.
    """
    times: dict[_Name, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    reorder = order.reverse if len(order) <= 2 else functools.partial(Random(0).shuffle, order)
    for _ in range(rounds):
        for name in order:
            times[name].append(microseconds(candidates[name], calls[name]))
        reorder()
        on_round()
    return Timings(times, calls)


# --- clock and power --------------------------------------------------------------------------


@dataclass
class Clocks:
    """Samples of the SM clock in MHz and the power in W; none where the driver reports none."""

    sm_mhz: list[int] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Return the medians and the lowest clock; empty without samples."""
        if not self.sm_mhz:
            return {}
        return {
            "sm_mhz_median": statistics.median(self.sm_mhz),
            "sm_mhz_min": min(self.sm_mhz),
            "power_w_median": statistics.median(self.power_w),
        }


@contextlib.contextmanager
def clocks_recorded(period_s: float = 0.02) -> Iterator[Clocks]:
    """Sample the clock and power of CuPy's current device in a thread."""
    clocks = Clocks()
    read = _reader()
    if read is None:
        yield clocks
        return
    stop = threading.Event()

    def sample() -> None:
        while True:
            mhz, watts = read()
            clocks.sm_mhz.append(mhz)
            clocks.power_w.append(watts)
            if stop.wait(period_s):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield clocks
    finally:
        stop.set()
        thread.join()


def _reader() -> Callable[[], tuple[int, float]] | None:
    """Return a function that reads clock and power of CuPy's current device; None without NVML."""
    import cupy

    bus = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.Device().id)
    device, mhz, milliwatts = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    try:
        nvml: Any = ctypes.CDLL(_NVML)
    except OSError:
        return None
    # NVML numbers devices in its own order, so the PCI address finds the device.
    name = bus if isinstance(bus, bytes) else bus.encode()
    refused = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(
        name, ctypes.byref(device)
    )
    if refused:
        return None

    def read() -> tuple[int, float]:
        nvml.nvmlDeviceGetClockInfo(device, _SM_CLOCK, ctypes.byref(mhz))
        nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts))
        return mhz.value, milliwatts.value / 1000

    return read
