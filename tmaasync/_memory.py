"""Bytes of our own that a kernel reads or writes: on a device, or in host memory."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from tmaasync import _driver

__all__ = ["DeviceMemory", "HostMemory", "PinnedMemory", "placed"]

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
        self.address = _driver.allocate(device, len(data))
        freed = weakref.finalize(self, _driver.free, device, self.address)
        freed.atexit = False  # the driver is gone by then, and the memory with it
        self.write(0, data)

    def write(self, offset: int, data: bytes) -> None:
        """Replace bytes from an offset on."""
        _driver.upload(self._device, self.address + offset, data)

    def read(self) -> bytes:
        return _driver.download(self._device, self.address, self._size)


class PinnedMemory:
    """Zeros in host memory, at an ``address`` that kernels write to.

    ``numpy.asarray`` has the bytes as an array, which keeps this object alive.
    """

    def __init__(self, device: int, size_bytes: int) -> None:
        self._size = size_bytes
        self.address = _driver.allocate_pinned(device, size_bytes)
        freed = weakref.finalize(self, _driver.free_pinned, device, self.address)
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

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self._size)
