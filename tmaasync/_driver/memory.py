"""Memory of the package itself, which kernels read or write: on a device and on the host."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable

import numpy as np

from tmaasync._driver import bindings
from tmaasync._driver.devices import on_device


def allocate(device: int, size_bytes: int) -> int:
    """Allocate memory on a device; return its address, a multiple of 256."""
    with on_device(device):
        return int(bindings.call("cuMemAlloc", size_bytes))


def allocate_pinned(device: int, size_bytes: int) -> int:
    """Allocate host memory that kernels of every device write, at one address for all."""
    driver = bindings.driver()
    flags = driver.CU_MEMHOSTALLOC_DEVICEMAP | driver.CU_MEMHOSTALLOC_PORTABLE
    with on_device(device):
        return int(bindings.call("cuMemHostAlloc", size_bytes, flags))


def free_pinned(device: int, address: int) -> None:
    """Free memory of `allocate_pinned`."""
    with on_device(device):
        bindings.call("cuMemFreeHost", address)


BLANK_BYTES = 256
_HOST_BLANK = ctypes.create_string_buffer(2 * BLANK_BYTES)


@functools.cache
def blank_address(device: int | None) -> int:
    """Return the address of 256 bytes, on a device or in host memory, that are never freed."""
    if device is not None:
        return allocate(device, BLANK_BYTES)
    start = ctypes.addressof(_HOST_BLANK)
    return start + -start % BLANK_BYTES


def free(device: int, address: int) -> None:
    """Free memory after all work that was submitted to the device before."""
    with on_device(device):
        bindings.call("cuMemFree", address)


def clear(device: int, address: int, size_bytes: int) -> None:
    """Write zeros to a device; they are there, for every stream, when this returns."""
    with on_device(device):
        bindings.call("cuMemsetD8", address, 0, size_bytes)
        bindings.call("cuStreamSynchronize", bindings.driver().CUstream(0))


def upload(device: int, address: int, data: bytes) -> None:
    """Write host bytes to a device; they are there, for every stream, when this returns."""
    source = ctypes.create_string_buffer(data, len(data))
    with on_device(device):
        bindings.call("cuMemcpyHtoD", address, ctypes.addressof(source), len(data))
        bindings.call("cuStreamSynchronize", bindings.driver().CUstream(0))


def download(device: int, address: int, size_bytes: int) -> bytes:
    """Read bytes of a device, after the work of its default stream."""
    data = ctypes.create_string_buffer(size_bytes)
    with on_device(device):
        bindings.call("cuMemcpyDtoH", ctypes.addressof(data), address, size_bytes)
    return data.raw


def bound_copy(
    device: int, target: int, source: int, size_bytes: int, stream: int
) -> Callable[[], None]:
    """Return a call that copies by the driver, in the order of a stream of the device."""
    driver = bindings.driver()
    copy, handle = driver.cuMemcpyDtoDAsync, driver.CUstream(stream)

    def call() -> None:
        with on_device(device):
            (result,) = copy(target, source, size_bytes, handle)
        if result:
            bindings.require_success("cuMemcpyDtoDAsync", result)

    return call


_ALIGNMENT = 128


def placed(device: int | None, data: bytes) -> HostMemory | DeviceMemory:
    """Return a copy of the data at a multiple of 128; it lives as long as the result.

    Args:
        device: The ordinal of the device; None for host memory.
        data: What to copy. It is there, for every stream, when this returns.
    """
    return HostMemory(data) if device is None else DeviceMemory(device, data)


class HostMemory:
    """Bytes in host memory, at ``address``."""

    def __init__(self, data: bytes) -> None:
        whole = np.empty(len(data) + _ALIGNMENT, np.uint8)
        start = -whole.ctypes.data % _ALIGNMENT
        self._bytes = whole[start : start + len(data)]
        self.address = int(self._bytes.ctypes.data)
        self.write(0, data)

    def write(self, offset: int, data: bytes) -> None:
        """Replace bytes from an offset on."""
        self._bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def read(self) -> bytes:
        return self._bytes.tobytes()


class DeviceMemory:
    """Bytes on a device, at ``address``."""

    def __init__(self, device: int, data: bytes) -> None:
        self._device, self._size = device, len(data)
        self.address = allocate(device, len(data))
        freed = weakref.finalize(self, free, device, self.address)
        freed.atexit = False  # the driver is gone by then, and the memory with it
        self.write(0, data)

    def write(self, offset: int, data: bytes) -> None:
        """Replace bytes from an offset on."""
        upload(self._device, self.address + offset, data)

    def read(self) -> bytes:
        return download(self._device, self.address, self._size)


class PinnedMemory:
    """Zeros in host memory, at an ``address`` that kernels write to.

    ``numpy.asarray`` has the bytes as an array, which keeps this object alive.
    """

    def __init__(self, device: int, size_bytes: int) -> None:
        self._size = size_bytes
        self.address = allocate_pinned(device, size_bytes)
        freed = weakref.finalize(self, free_pinned, device, self.address)
        freed.atexit = False  # as above
        self.clear()

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {
            "version": 3,
            "shape": (self._size,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def clear(self) -> None:
        ctypes.memset(self.address, 0, self._size)

    def read(self, size_bytes: int | None = None) -> bytes:
        """Return the first bytes; by default all."""
        return ctypes.string_at(self.address, self._size if size_bytes is None else size_bytes)
