"""The clock and power of a GPU, sampled while something runs on it."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Clocks", "clocks_recorded"]

_LIBRARY = "libnvidia-ml.so.1"  # comes with the driver
_SM_CLOCK = 1


@dataclass
class Clocks:
    """SM clock in MHz and power in W, sample by sample; none where the driver does not tell."""

    sm_mhz: list[int] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Medians, and the lowest clock; empty without samples."""
        if not self.sm_mhz:
            return {}
        return {
            "sm_mhz_median": statistics.median(self.sm_mhz),
            "sm_mhz_min": min(self.sm_mhz),
            "power_w_median": statistics.median(self.power_w),
        }


@contextlib.contextmanager
def clocks_recorded(period_s: float = 0.02) -> Iterator[Clocks]:
    """Sample CuPy's current device in a thread."""
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
    """Reads clock and power of the current device, by the driver's management library (NVML)."""
    import cupy

    bus = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.Device().id)
    device, mhz, milliwatts = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    try:
        nvml: Any = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    # The device by its place on the bus: its number here need not be the one over there.
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
