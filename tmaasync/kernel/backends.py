"""The back end of each device; the host's is registered, and imported with the first host array."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tmaasync import _driver
from tmaasync._arrays import stream_of
from tmaasync._driver import DeviceLimits, DeviceMemory, PinnedMemory
from tmaasync.kernel.arguments import Placed
from tmaasync.kernel.backend import Backend, BoundCall, Build, host_backend
from tmaasync.kernel.builds import CudaBuild, max_active_clusters
from tmaasync.kernel.launch import wait_for_producers
from tmaasync.kernel.recipe import Recipe

__all__ = ["Builds", "backend_of"]


class CudaBackend(Backend):
    """A CUDA device, through the driver."""

    device: int
    waits = False
    reads_host_memory = False

    def __init__(self, device: int) -> None:
        super().__init__()
        self.device = device

    def build(self, recipe: Recipe) -> Build:
        return CudaBuild(recipe, self.device)

    @property
    def location(self) -> str:
        return f"cuda:{self.device}"

    def has_peer_access(self, device: int, peer: int) -> bool:
        return _driver.has_peer_access(device, peer)

    @property
    def gpu(self) -> str:
        return self.limits.name

    @property
    def limits(self) -> DeviceLimits:
        return _driver.require_device(self.device)

    def max_active_clusters(self, size: int) -> int:
        return max_active_clusters(self.device, size)

    def stream(self, frameworks: Iterable[str], given: object = None) -> int:
        return stream_of(frameworks, self.device, given)

    def wait_for_producers(self, arrays: Iterable[Placed], stream: int) -> None:
        wait_for_producers(arrays, stream, self.device)

    def current(self) -> contextlib.AbstractContextManager[None]:
        return _driver.on_device(self.device)

    def upload(self, data: bytes) -> DeviceMemory:
        return DeviceMemory(self.device, data)

    def host_flag(self) -> npt.NDArray[np.int32]:
        return np.asarray(PinnedMemory(self.device, np.dtype(np.int32).itemsize)).view(np.int32)

    copies_contiguous_memory = True

    def bound_copy(self, target: int, source: int, size_bytes: int, stream: int) -> BoundCall:
        return _driver.bound_copy(self.device, target, source, size_bytes, stream)


def backend_of(device: int | None) -> Backend:
    """Return the back end for arrays on this device; None for host memory."""
    return host_backend() if device is None else _cuda_backend(device)


_cuda_backend = functools.cache(CudaBackend)


class Builds(dict[Backend, Build]):
    """The builds of a kernel, made when they are asked for."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self._recipe = recipe

    def on(self, device: int | None) -> Build:
        """Return the build for a device; None for host memory."""
        return self[backend_of(device)]

    def __missing__(self, backend: Backend) -> Build:
        build = self[backend] = backend.build(self._recipe)
        return build
