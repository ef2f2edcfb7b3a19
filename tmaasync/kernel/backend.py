"""Back ends: CUDA devices, and the emulator for arrays in host memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tmaasync import _driver, emulate
from tmaasync._driver import DeviceLimits
from tmaasync._hardware import HOPPER
from tmaasync._memory import DeviceMemory, HostMemory, PinnedMemory
from tmaasync._streams import stream_of
from tmaasync.kernel.builds import max_active_clusters
from tmaasync.kernel.source import without_wgmma

__all__ = ["Backend", "BoundCall", "Launch", "backend_of"]

BoundCall = Callable[[], None]
"""Launches with fixed addresses, on a fixed stream."""


class Launch(Protocol):
    """A prepared launch, or a sequence of launches."""

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch with these addresses as the first arguments."""

    def bind(self, addresses: Sequence[int], stream: int) -> BoundCall:
        """Return a call that launches with these addresses and this stream."""


class Backend(ABC):
    """Limits, streams and memory of a device, or of the host.

    Attributes:
        device: The ordinal of a CUDA device; None for host memory.
    """

    device: int | None

    @property
    @abstractmethod
    def limits(self) -> DeviceLimits:
        """Limits on a launch.

        Raises:
            BackendError: The device is older than sm_90.
        """

    def require_wgmma(self, user: str) -> None:
        """Check that the device has wgmma, which a kernel or operation needs.

        Raises:
            BackendError: The device has no wgmma, or not even TMA.
        """
        limits = self.limits
        if limits.compute_capability != HOPPER:
            device = f"device {self.device} ({limits.name})"
            raise without_wgmma(user, limits.compute_capability, device)

    @abstractmethod
    def max_active_clusters(self, size: int) -> int:
        """Return the max active clusters of ``size`` blocks, one block per SM."""

    @abstractmethod
    def stream(self, frameworks: Iterable[str], given: object = None) -> int:
        """Return the handle of the caller's stream, or of the frameworks' current stream."""

    @abstractmethod
    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make the device current inside the ``with``."""

    @abstractmethod
    def upload(self, data: bytes) -> HostMemory | DeviceMemory:
        """Copy data to the device, 128-byte aligned, and return the memory.

        The copy lives as long as the result, and is visible to every stream on return.
        """

    @abstractmethod
    def host_flag(self) -> npt.NDArray[np.int32]:
        """Return an int32 zero that kernels can write and the host can read without a wait."""

    @property
    @abstractmethod
    def copies_contiguous_memory(self) -> bool:
        """Whether `bound_copy` is at least as fast as a copy by TMA."""

    @abstractmethod
    def bound_copy(self, target: int, source: int, size_bytes: int, stream: int) -> BoundCall:
        """Return a call that copies between two addresses."""


class EmulatorBackend(Backend):
    """This machine's CPU: no streams, launches run one after the other."""

    device = None

    @property
    def limits(self) -> DeviceLimits:
        return emulate.LIMITS

    def max_active_clusters(self, size: int) -> int:
        return emulate.max_active_clusters(size)

    def stream(self, frameworks: Iterable[str], given: object = None) -> int:
        return stream_of(frameworks, None, given)

    def current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def upload(self, data: bytes) -> HostMemory:
        return HostMemory(data)

    def host_flag(self) -> npt.NDArray[np.int32]:
        return np.zeros(1, np.int32)

    copies_contiguous_memory = False  # so that a copy runs, and shows, the TMA kernel

    def bound_copy(self, target: int, source: int, size_bytes: int, stream: int) -> BoundCall:
        del stream

        def call() -> None:
            ctypes.memmove(target, source, size_bytes)

        return call


class CudaBackend(Backend):
    """A CUDA device, through the driver."""

    device: int

    def __init__(self, device: int) -> None:
        self.device = device

    @property
    def limits(self) -> DeviceLimits:
        return _driver.require_device(self.device)

    def max_active_clusters(self, size: int) -> int:
        return max_active_clusters(self.device, size)

    def stream(self, frameworks: Iterable[str], given: object = None) -> int:
        return stream_of(frameworks, self.device, given)

    def current(self) -> contextlib.AbstractContextManager[None]:
        return _driver.on_device(self.device)

    def upload(self, data: bytes) -> DeviceMemory:
        return DeviceMemory(self.device, data)

    def host_flag(self) -> npt.NDArray[np.int32]:
        return np.asarray(PinnedMemory(self.device, np.dtype(np.int32).itemsize)).view(np.int32)

    copies_contiguous_memory = True

    def bound_copy(self, target: int, source: int, size_bytes: int, stream: int) -> BoundCall:
        return _driver.bound_copy(self.device, target, source, size_bytes, stream)


@functools.cache
def backend_of(device: int | None) -> Backend:
    """Return the back end for arrays on this device; None for host memory."""
    return EmulatorBackend() if device is None else CudaBackend(device)
