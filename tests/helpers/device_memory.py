"""Memory of the GPU under test: what each test leaves in pools, and the most of all processes."""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any

__all__ = ["PeakSampler", "free_pools", "pooled_bytes"]

KEPT_BYTES = 256 << 20
"""What a process may keep from test to test: to allocate anew waits for the GPU."""


def pooled_bytes() -> int:
    """Bytes of device memory in the pools of this process: the most that was allocated at once."""
    total = 0
    if cupy := sys.modules.get("cupy"):
        total += int(cupy.get_default_memory_pool().total_bytes())
    if torch := _torch():
        total += int(torch.cuda.memory_reserved())
    return total


def free_pools() -> None:
    """Give the memory back that no array holds: other processes test on the same GPU."""
    if cupy := sys.modules.get("cupy"):
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    if torch := _torch():
        torch.cuda.empty_cache()


def _torch() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


class _MemoryInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class PeakSampler:
    """The most memory of a GPU that all processes used, as NVML says; it needs no context."""

    def __init__(self, device: int = 0, interval_seconds: float = 0.05) -> None:
        self.peak_bytes = self.total_bytes = 0
        self._interval_seconds = interval_seconds
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        self._handle = ctypes.c_void_p()
        if self._nvml.nvmlInit_v2() == 0 and not self._nvml.nvmlDeviceGetHandleByIndex_v2(
            device, ctypes.byref(self._handle)
        ):
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def _sample(self) -> None:
        info = _MemoryInfo()
        while not self._done.wait(self._interval_seconds):
            if self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(info)) == 0:
                self.peak_bytes = max(self.peak_bytes, info.used)
                self.total_bytes = info.total

    def stop(self) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
